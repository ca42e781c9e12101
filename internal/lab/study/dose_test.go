package study

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const dose = `
version: 1
study: dose
environments: {ve: {driver: cgroup, cpus: 2}}
workloads: {burn: {builtin: primes, threads: 7}}
roles:
  test: {workload: burn, environment: ve, threads: $threads, measure: true}
  nb:   {workload: burn, environment: ve, count: $neighbours, state: $state}
  rest: {workload: burn, environment: ve, threads: "3"}
factors:
  threads: ["1", "4"]
  neighbours: ["0", "2"]
  state: [busy, idle]
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1, exclude: [{neighbours: "0", state: idle}]}
run: {for: 1s}
`

// A role's threads and state follow a factor. Without one, the threads are the workload's
// and the state is busy.
func TestDose(t *testing.T) {
	s, err := Parse("dose.yaml", []byte(dose), known)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range s.Cells() {
		var parts []string
		for i := range c.Parts {
			p := &c.Parts[i]
			parts = append(parts, fmt.Sprintf("%s %d %t", p.Name(), p.Threads(), p.Idle))
		}
		got = append(got, strings.Join(parts, ", "))
	}
	var want []string
	for _, threads := range []int{1, 4} {
		want = append(want, fmt.Sprintf("test %d false, rest 3 false", threads))
		for _, idle := range []bool{false, true} {
			want = append(want, fmt.Sprintf("test %d false, nb/0 7 %t, nb/1 7 %t, rest 3 false", threads, idle, idle))
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if p := (&Part{Environment: Environment{CPUs: 2}}); p.Threads() != 2 {
		t.Errorf("%d threads, want one per CPU of the environment", p.Threads())
	}
	for _, bad := range []struct{ old, new, want string }{
		{"state: $state}", "state: $threads}", `roles.nb.state: "1": want busy, idle, or a $factor with these levels`},
		{"builtin: primes, threads: 7", "command: [x], threads: 7, metric: {parse: sysbench}", "workloads.burn.threads: 7: want none"},
		{"builtin: primes, threads: 7", "command: [x], metric: {parse: sysbench}", `roles.test.threads: "$threads" of burn: want none`},
		{`threads: "3"`, `threads: "0"`, `roles.rest.threads: "0": want a whole number of at least 1`},
	} {
		_, err := Parse("dose.yaml", []byte(strings.Replace(dose, bad.old, bad.new, 1)), known)
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %s", bad.new, err, bad.want)
		}
	}
}
