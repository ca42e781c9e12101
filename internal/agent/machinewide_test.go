package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// overallSource is a source of the machine as a whole.
type overallSource struct {
	*source
	name string
	cost func() float64
}

// Stop implements counter.MachineSource.
func (s overallSource) Stop() error {
	return s.source.Stop(counter.WindowEnd{}, nil)
}

func (s overallSource) MachineReadings(yield func(string, sample.Set, counter.Reading)) {
	yield(s.name, nil, counter.Reading{Cost: s.cost(), Coverage: 1})
}

// overall is a rig whose one source measures the machine as a whole: cost returns its
// reading for a loud task's usage.
func overall(t *testing.T, sig sample.SignalName, name string, cost func(usage float64) float64, settings ...string) (r *rig, loud *guest) {
	r = newRig(t, newMachine(t), t.TempDir(), append([]string{"enforce.mode=on", "signals=" + string(sig)}, settings...)...)
	r.add("/web/1", 0.5)
	loud = r.add("/batch/loud-1", 0.1)
	r.source = r.machine.source(sig)
	n := 0
	r.asMachine = func(s *source) counter.MachineSource {
		return overallSource{s, name, func() float64 { n++; return cost(loud.rate()) * (1 + 0.01*float64(n%5)) }}
	}
	r.start()
	r.pass(12*time.Minute - 30*time.Second)
	if all := r.incidents(); len(all) != 0 {
		t.Fatalf("incidents while all was quiet: %+v", all)
	}
	return r, loud
}

// The canary names the task that fills the cache, and no task is capped for it.
func TestTheCanaryNamesWhoIsLoudAndNobodyIsCapped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, loud := overall(t, sample.Probe, "(cache 0)", func(usage float64) float64 { return 20e-9 * (1 + 3*max(0, usage-0.1)) })
		defer r.stop()
		loud.set(1.5)
		r.pass(4 * time.Minute)
		all := r.incidents()
		if len(all) != 1 || all[0].Kind != detect.Neighbour || all[0].Victim.Name != "(cache 0)" || all[0].Antagonists != 1 ||
			all[0].Suspects[0].Name != "/batch/loud-1" {
			t.Fatalf("found %+v", all)
		}
		if inc := all[0]; len(inc.Rounds) != 0 || !strings.Contains(inc.NotDone, "not protected") || inc.Outcome != plan.NotActed {
			t.Errorf("reason %q, outcome %s, rounds %+v", inc.Reason, inc.Outcome, inc.Rounds)
		}
		if got := r.values[loud.limit()]; got != "max" {
			t.Errorf("the loud task is limited to %q", got)
		}
		if _, got := r.scrape(); !strings.HasPrefix(got[`quell_machine_cost{name="(cache 0)",signal="probe"}`], "1.0") && !strings.HasPrefix(got[`quell_machine_cost{name="(cache 0)",signal="probe"}`], "1e-07") {
			t.Errorf("quell_machine_cost is %q", got[`quell_machine_cost{name="(cache 0)",signal="probe"}`])
		}
		of, costs := map[sample.TaskName]int{}, map[sample.TaskName]int{}
		for i := range r.samples {
			of[r.samples[i].Task]++
			if c := r.samples[i].Cost; c == c {
				costs[r.samples[i].Task]++
			}
		}
		if len(costs) != 1 || costs["(cache 0)"] < 15 || of["/batch/loud-1"] != costs["(cache 0)"] {
			t.Errorf("samples of %v, with costs of %v; want the stand-in's costs, and the usage of each suspect", of, costs)
		}
	})
}

// Stolen time is caused by another machine: a task that is loud at the same time is not
// even a suspect, with any rule.
func TestForStolenTimeNobodyHereIsAccused(t *testing.T) {
	for rule, kind := range map[string]detect.Kind{"evidence": detect.Steal, "quell": detect.Steal, "cpi2": detect.Nobody} {
		t.Run(rule, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, loud := overall(t, sample.Steal, "(machine)", func(usage float64) float64 { return 0.001 + 0.2*max(0, usage-0.1) }, "detect.rule="+rule)
				defer r.stop()
				loud.set(1.5)
				r.pass(4 * time.Minute)
				all := r.incidents()
				if len(all) != 1 || all[0].Kind != kind || all[0].Victim.Name != "(machine)" || len(all[0].Suspects) != 0 || len(all[0].Rounds) != 0 {
					t.Fatalf("found %+v", all)
				}
				if rule != "cpi2" && !strings.Contains(all[0].Reason, "another VM") {
					t.Errorf("reason %q", all[0].Reason)
				}
			})
		})
	}
}
