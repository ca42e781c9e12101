package study

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const rented = `
version: 1
study: rented
hosts:
  test: {address: inventory, price: 0.05 USD}
  nb1: {address: inventory}
  nb2: {address: inventory}
  nb10: {address: inventory}
  metal: {address: inventory, price: 0.06 USD}
environments: {node: {driver: host, cpus: 2, price: 0.04 USD}}
workloads: {burn: {builtin: primes}}
roles:
  test: {workload: burn, environment: node, host: $where, measure: true}
  nb:   {workload: burn, environment: node, host: $where, count: $neighbours}
factors:
  where: {sets: {vm: {test: test, nb: "nb*"}, metal: {test: metal, nb: metal}}}
  neighbours: ["0", "2", "3"]
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1, exclude: [{where: metal, neighbours: ">2"}]}
run: {for: 1s}
`

// A role with several instances on hosts with a common prefix has one instance on each
// host, in the order of their numbers. Cells that meet an exclusion's bound are left out.
// The price is the host's if it has one.
func TestHostsOfARole(t *testing.T) {
	s, err := Parse("rented.yaml", []byte(rented), known)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range s.Cells() {
		line := c.Level("where") + ":"
		for i := range c.Parts {
			p := &c.Parts[i]
			line += fmt.Sprintf(" %s@%s (%s)", p.Name(), p.Host, s.Price(p))
		}
		got = append(got, line)
	}
	want := []string{
		"vm: test@test (0.05 USD)",
		"vm: test@test (0.05 USD) nb/0@nb1 (0.04 USD) nb/1@nb2 (0.04 USD)",
		"vm: test@test (0.05 USD) nb/0@nb1 (0.04 USD) nb/1@nb2 (0.04 USD) nb/2@nb10 (0.04 USD)",
		"metal: test@metal (0.06 USD)",
		"metal: test@metal (0.06 USD) nb/0@metal (0.06 USD) nb/1@metal (0.06 USD)",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, bad := range []struct{ old, new, want string }{
		{`neighbours: ["0", "2", "3"]`, `neighbours: ["0", "2", "4"]`, `roles.nb.host: "nb*": want a host with this prefix for each instance of the role: 4, there are 3`},
		{`test: metal, nb: metal`, `test: metal, nb: iron`, `roles.nb.host: "iron": want one of metal, nb1, nb10, nb2, test`},
		{`price: 0.06 USD`, `price: 0.06 EUR`, `hosts.test.price: 0.05 USD: want a price in EUR, as the others are`},
		{`price: 0.06 USD`, `price: cheap`, `want an amount with its currency such as 0.0528 USD`},
		{`price: 0.06 USD`, `price: -1 USD`, `want an amount with its currency such as 0.0528 USD`},
		{"run: {for: 1s}", "run: {for: 1s}\nobserve: {agent: {signals: [runq], period: 1s}}", `observe.agent: given: want a role on the lab's own machine`},
		{"  neighbours:", "  place: [{name: free, relation: neutral}, {name: apart, relation: per-core}]\n  neighbours:", `factors.place[1]: apart: want cpus for each role`},
		{"controls:", "preconditions: {set: {thp: never}}\ncontrols:", "preconditions.set: given: want also local: {} in hosts"},
		{"  neighbours:", "  thp: {knob: thp, levels: [never, always]}\n  neighbours:", `factors.thp.knob: "thp": want also local: {} in hosts`},
		{`neighbours: ">2"`, `neighbours: ">3"`, `design.exclude[0].neighbours: ">3": want one of 0, 2, 3`},
	} {
		text := strings.Replace(rented, bad.old, bad.new, 1)
		if text == rented {
			t.Fatalf("%s is not in the study", bad.old)
		}
		if _, err := Parse("rented.yaml", []byte(text), known); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %s", bad.new, err, bad.want)
		}
	}
	// The lab's machine may be the host of the guests that are the other hosts.
	named := strings.NewReplacer("hosts:\n", "hosts:\n  local: {}\n", "controls:", "preconditions: {set: {thp: never}}\ncontrols:").Replace(rented)
	if _, err := Parse("rented.yaml", []byte(named), known); err != nil {
		t.Error(err)
	}
}

// A price is not part of a cell, so a study's records keep their names when it changes.
func TestPriceIsNoPartOfACell(t *testing.T) {
	keys := func(text string) (keys []string) {
		s, err := Parse("rented.yaml", []byte(text), known)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range s.Cells() {
			keys = append(keys, c.Key())
		}
		return keys
	}
	if a, b := keys(rented), keys(strings.ReplaceAll(strings.ReplaceAll(rented, "0.04", "0.07"), "0.05", "0.08")); !slices.Equal(a, b) {
		t.Error("cells change with prices")
	}
}

func TestMeets(t *testing.T) {
	for _, c := range []struct {
		level, meant string
		want         bool
	}{
		{"2", "2", true}, {"2", "3", false}, {"12", ">11", true}, {"11", ">11", false}, {"9", ">11", false}, {"2", "<3", true},
		{"3", "<3", false}, {"vm", ">1", false}, {"2", ">vm", false}, {">2", ">2", true},
	} {
		if got := meets(c.level, c.meant); got != c.want {
			t.Errorf("%q meets %q: %t", c.level, c.meant, got)
		}
	}
}

const switched = `
version: 1
study: switched
hosts:
  test: {address: inventory}
  nb: {address: inventory, count: 2, power: true}
  metal: {address: inventory}
environments:
  node: {driver: host, cpus: 1}
  metal: {driver: host, cpus: 1, host: metal}
workloads:
  serve: {command: [iperf3, -s], serves: 5201, metric: {parse: time}}
  ask: {command: [iperf3, -c, "{asks}"], iterations: 1, metric: {parse: time}}
roles:
  test: {workload: ask, environment: $ve, host: test, asks: nb, measure: true}
  nb:   {workload: serve, environment: $ve, host: "nb*", count: $neighbours}
factors:
  ve: [node, metal]
  neighbours: ["1", "2"]
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1, order: sequential}
`

// A host with a count is several; those that are switched are off in the cells without a role
// on them, and switching takes time; an environment's host is that of all roles in it; a role
// that asks another one has its host.
func TestHostsThatAreSwitched(t *testing.T) {
	switchable := Known{Parsers: []string{"time"}}
	s, err := Parse("switched.yaml", []byte(switched), switchable)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range s.Plan() {
		line := ""
		for i := range p.Cell.Parts {
			part := &p.Cell.Parts[i]
			line += part.Name() + "@" + part.Host + " "
		}
		got = append(got, fmt.Sprintf("%sasks %s, off %q, %s", line, p.Cell.Parts[0].Asks, p.Cell.Off, p.Takes))
	}
	want := []string{
		`test@test nb@nb1 asks nb1, off ["nb2"], 3s`,
		`test@test nb/0@nb1 nb/1@nb2 asks nb1, off [], 1m3s`,
		`test@metal nb@metal asks metal, off ["nb1" "nb2"], 1m3s`,
		`test@metal nb/0@metal nb/1@metal asks metal, off ["nb1" "nb2"], 3s`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// Alone is without the neighbours' hosts too.
	alone, err := Parse("switched.yaml", []byte(strings.Replace(switched, "solo: false", "solo: true", 1)), switchable)
	if err != nil {
		t.Fatal(err)
	}
	solos := 0
	for _, c := range alone.Cells() {
		if c.Kind == Solo {
			solos++
			if !slices.Equal(c.Off, []string{"nb1", "nb2"}) {
				t.Errorf("%s: off %q", c.String(), c.Off)
			}
		}
	}
	if solos == 0 {
		t.Error("no cell is alone")
	}
	for _, bad := range []struct{ old, new, want string }{
		{"count: 2,", "count: 1,", `roles.nb.host: "nb*": want a host with this prefix for each instance of the role: 2, there are 1`},
		{"count: 2,", "count: -1,", "hosts.nb.count"},
		{"host: metal}", "host: iron}", `environments.metal.host: "iron": want one of metal, nb1, nb2, test`},
		{"serves: 5201", "serves: 70000", "workloads.serve.serves"},
		{"command: [iperf3, -s], serves", "builtin: idle, serves", "workloads.serve.serves"},
	} {
		text := strings.Replace(switched, bad.old, bad.new, 1)
		if text == switched {
			t.Fatalf("%s is not in the study", bad.old)
		}
		if _, err := Parse("switched.yaml", []byte(text), switchable); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %s", bad.new, err, bad.want)
		}
	}
}
