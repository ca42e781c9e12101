package lab

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/machine/host"
)

const turning = `
version: 1
study: t
environments: {ve: {driver: cgroup, cpus: 1}}
workloads:
  work: {builtin: burn, iterations: 20}
roles:
  fg: {workload: work, environment: ve, measure: true}
factors:
  pf: {knob: prefetching, levels: ["on", "off"]}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1, order: sequential}
run: {retries: 0}
`

// The knobs of a run's cell are set before its environments are made, and reset after
// these are removed, also where the run fails. Where the machine has no such knob the
// run is skipped with the reason.
func TestKnobsLastForTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := &theatre{}
		o := options(t, turning, th)
		var log []string
		made := func() int { return len(th.envs) }
		o.SetKnobs = func(knobs map[string]string) (func() error, error) {
			if made() != len(log) { // each run resets one knob and makes one environment
				t.Errorf("%d environments are there before %v", made(), knobs)
			}
			value := knobs["prefetching"]
			return func() error {
				if e := th.envs[len(th.envs)-1]; !e.closed {
					t.Errorf("%s goes back while %s is there", value, e.name)
				}
				log = append(log, value)
				return nil
			}, nil
		}
		sum, err := Run(t.Context(), o)
		if err != nil || sum.Verdicts[result.Valid] != 2 || !slices.Equal(log, []string{"on", "off"}) {
			t.Errorf("%v, %+v, put back %v", err, sum, log)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := options(t, turning, &theatre{})
		o.SetKnobs = func(knobs map[string]string) (func() error, error) {
			if knobs["prefetching"] == "off" {
				return nil, &LackError{What: "no such register"}
			}
			return func() error { return errors.New("stuck") }, nil
		}
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		runs, err := o.Folder.Runs()
		if err != nil || len(runs) != 2 {
			t.Fatalf("%d runs, %v", len(runs), err)
		}
		if r := runs[0]; r.Verdict != result.Failed || !strings.Contains(r.Evidence[0].Text, "stuck") {
			t.Errorf("a knob that stays: %s, %+v", r.Verdict, r.Evidence)
		}
		if r := runs[1]; r.Verdict != result.Skipped || !strings.Contains(r.Evidence[0].Text, "no such register") {
			t.Errorf("a knob that is not there: %s, %+v", r.Verdict, r.Evidence)
		}
	})
}

// A knob may be that of SMT: with the second threads off, a part is placed on the CPUs that are left.
func TestKnobsChangeCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th, value := &theatre{}, ""
		o := options(t, turning, th)
		o.SetKnobs = func(knobs map[string]string) (func() error, error) {
			value = knobs["prefetching"]
			return func() error { return nil }, nil
		}
		both, top := o.Allowed, o.Topology
		o.CPUs = func() (host.Topology, sample.Set, error) {
			if value == "off" {
				return host.Topology{CPUs: top.CPUs[:1]}, sample.SetOf(0), nil
			}
			return top, both, nil
		}
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		var placed []string
		for _, e := range th.envs {
			placed = append(placed, e.sets[0].String())
		}
		if want := []string{both.String(), sample.SetOf(0).String()}; !slices.Equal(placed, want) {
			t.Errorf("placed on %v, want %v", placed, want)
		}
	})
}
