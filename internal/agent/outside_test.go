package agent

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/spec"
)

// A daemon that no rule matches hurts the victim while a batch job is busy all the
// time. The incident names usage outside any task, and the job is not capped.
func TestWhatRunsOutsideAnyTaskIsNamedAndNobodyElseIsCapped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		daemon, loud := r.add("/host/daemon", 0.05), r.add("/batch/loud-1", 1.2)
		r.add("/batch/loud-1/inner", 0) // counted with the task that contains it
		r.suffering(daemon)
		r.start()
		defer r.stop()
		r.learn()
		if got := r.status().Outside; math.Abs(got-0.05) > 1e-6 {
			t.Errorf("%v CPU-s/s outside any task, want 0.05", got)
		}

		if _, got := r.scrape(); !strings.HasPrefix(got["quell_outside_cpu"], "0.05") {
			t.Errorf("quell_outside_cpu is %q", got["quell_outside_cpu"])
		}
		// No trial is possible, so it must start and stop until chance is ruled out. The alert QuellNoisyNeighbour
		// asks for a level of at least 2 of a suspect that has a name.
		level := "0"
		for range 4 {
			daemon.set(1.5)
			for range 5 {
				r.pass(time.Minute)
				_, got := r.scrape()
				for name, v := range got {
					if strings.HasPrefix(name, "quell_pair_level{") && strings.Contains(name, `suspect="(other)"`) {
						level = max(level, v)
					}
				}
			}
			daemon.set(0.05)
			r.pass(3 * time.Minute)
		}
		if level < "2" {
			t.Errorf("the highest level of the series of (other) is %s", level)
		}
		all := r.incidents()
		if len(all) != 1 || all[0].Kind != detect.Neighbour || all[0].Antagonists != 1 || all[0].Suspects[0].Name != detect.OutsideName {
			t.Fatalf("found %+v", all)
		}
		if s := all[0].Suspects[0]; !strings.Contains(all[0].NotDone, "outside any task") || s.Usage < 0.3 || s.Usage > 1.5 {
			t.Errorf("reason %q, suspect %+v", all[0].Reason, s)
		}
		if len(all[0].Rounds) > 0 || r.values[loud.limit()] != "max" || r.values[daemon.limit()] != "max" {
			t.Errorf("a task is capped: %+v", r.values)
		}
	})
}

// If starting to count takes long, the tasks' usage in that time is not attributed to
// anything outside them.
func TestWhatIsUsedBeforeAWindowIsNobodys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/host/daemon", 0.05)
		r.add("/batch/loud-1", 1.2)
		r.source.starting = func() { <-time.After(5 * time.Second) }
		r.start()
		defer r.stop()
		r.pass(3 * time.Minute)
		if got := r.status().Outside; math.Abs(got-0.05) > 1e-6 {
			t.Errorf("%v CPU-s/s outside any task, want 0.05", got)
		}
	})
}

// On a machine without free CPU time the tasks' readings and the machine's end far from each
// other. What tasks use between the two is not attributed to anything outside them.
func TestUsageBetweenTwoReadingsIsNotOutside(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/host/daemon", 0.05)
		r.add("/batch/loud-1", 1.2)
		r.slowTimes = 5 * time.Second
		r.start()
		defer r.stop()
		r.pass(3 * time.Minute)
		if got := r.status().Outside; math.Abs(got-0.05) > 1e-6 {
			t.Errorf("%v CPU-s/s outside any task, want 0.05", got)
		}
	})
}

// A victim whose work becomes more expensive is reported as such and no task is capped;
// once that has lasted, the spec follows until the new cost is normal.
func TestALastingPhaseChangeBecomesNormal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "spec.every=1m")
		loud := r.add("/batch/loud-1", 1.2)
		victim := r.add("/web/1", 0.5)
		level, n := 1.0, 0
		victim.cost = func() float64 { n++; return level + 0.01*float64(n%5) }
		r.start()
		defer r.stop()
		r.learn()

		level = 3
		r.pass(10 * time.Minute)
		all := r.incidents()
		if len(all) != 1 || all[0].Kind != detect.PhaseChange || all[0].Change != detect.NewLevel || all[0].Follows || all[0].Outcome != plan.NotActed {
			t.Fatalf("found %+v", all)
		}
		if s := r.spec("web"); s.Samples != 12 || s.Mean > 1.1 {
			t.Errorf("ten minutes of it have taught %+v", s)
		}
		r.pass(22 * time.Minute)
		if all = r.incidents(); !all[0].Follows || !strings.Contains(all[0].Reason, "the spec adapts") {
			t.Errorf("after half an hour: %+v", all[0])
		}
		r.pass(30 * time.Minute)
		all = r.incidents()
		if s := r.spec("web"); s.State != spec.Ready || s.Mean < 1.5 {
			t.Errorf("the spec has not followed: %+v", s)
		}
		if len(all) != 1 || all[0].Closed == 0 || len(all[0].Rounds) != 0 {
			t.Errorf("what is normal by now is still an incident: %+v", all)
		}
		if r.values[loud.limit()] != "max" {
			t.Error("the loud innocent was capped")
		}
		_, got := r.scrape()
		if n, err := strconv.Atoi(got[`quell_findings_total{kind="phase-change",signal="cpi"}`]); n < 20 {
			t.Errorf("%d findings of a phase change are counted, %v", n, err)
		}
		if n, ok := got[`quell_findings_total{kind="neighbour",signal="cpi"}`]; ok {
			t.Errorf("%s findings of a neighbour are counted", n)
		}
	})
}
