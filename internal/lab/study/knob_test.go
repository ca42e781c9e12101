package study

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/format/keyed"
)

const turned = `
version: 1
study: turned
%s
environments: {ve: {driver: cgroup, cpus: 1}}
workloads: {a: {builtin: primes}, b: {builtin: burst}}
roles:
  fg: {workload: a, environment: ve, measure: true}
  bg: {workload: b, environment: ve}
factors:
  pf: {knob: prefetching, levels: ["on", "off"]}
  place: [{name: apart, relation: per-core}]
%s
design: {repetitions: 1}
run: {for: 1s}
`

// A factor that varies a knob gives cells for both settings, also for parts alone. The
// cells of other studies keep their keys.
func TestKnobIsAFactor(t *testing.T) {
	s, err := Parse("turned.yaml", fmt.Appendf(nil, turned, "", ""), known)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range s.Cells() {
		got = append(got, c.String()+fmt.Sprint(c.Knobs))
	}
	want := []string{"main pf=on place=apartmap[prefetching:on]", "main pf=off place=apartmap[prefetching:off]",
		"solo role=fg workload=a environment=ve placement=apart pf=onmap[prefetching:on]", "solo role=fg workload=a environment=ve placement=apart pf=offmap[prefetching:off]"}
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	cells := s.Cells()
	if ls := cells[1].Conditions(); len(ls) != 1 || ls[0] != (Level{"prefetching", "off"}) {
		t.Errorf("%v", ls)
	}
	if cells[0].Key() == cells[1].Key() {
		t.Error("two settings are one cell")
	}
}

func TestKnobProblems(t *testing.T) {
	k := known
	k.Knob = func(name, value string) error {
		if name != "prefetching" && name != "ksm" || value != "on" && value != "off" && value != "1" {
			return fmt.Errorf("no %s %s", name, value)
		}
		return nil
	}
	for name, c := range map[string]struct{ pre, factor, want string }{
		"held for all of the study": {"preconditions: {set: {prefetching: \"on\"}}", "", "factors.pf.knob"},
		"turned by two":             {"", "  pf2: {knob: prefetching, levels: [\"on\"]}", "factors.pf2.knob"},
		"an unknown one":            {"", "  x: {knob: turbo, levels: [\"on\"]}", "factors.x.levels"},
		"a value that it has not":   {"", "  x: {knob: ksm, levels: [\"much\"]}", "factors.x.levels"},
		"no levels":                 {"", "  x: {knob: ksm, sets: {A: {fg: a}}}", "factors.x.knob"},
	} {
		_, err := Parse("x.yaml", fmt.Appendf(nil, turned, c.pre, c.factor), k)
		var bad *keyed.InvalidError
		if !errors.As(err, &bad) || !slices.ContainsFunc(bad.Problems, func(p keyed.Problem) bool { return p.Key == c.want }) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
