package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
)

// comeAndGo makes a task loud for five minutes and quiet for three, repeatedly, for
// about an hour.
func (r *rig) comeAndGo(g *guest) {
	for range 8 {
		g.set(1.5)
		r.pass(5 * time.Minute)
		g.set(0.05)
		r.pass(3 * time.Minute)
	}
}

// An agent that was not told to act writes nothing, and never to the limit of a task
// that may not be capped: trials are no exception.
func TestNobodyIsTriedWhoMayNotBeCapped(t *testing.T) {
	for _, c := range []struct {
		name, noisy string
		settings    []string
	}{
		{"as configured out of the box", "/batch/noisy-1", nil},
		{"off", "/batch/noisy-1", []string{"enforce.mode=off"}},
		{"never-cap", "/sys/noisy-1", []string{"enforce.mode=on"}},
		{"latency-sensitive", "/web/2", []string{"enforce.mode=on"}},
		{"trials turned off", "/batch/noisy-1", []string{"enforce.mode=on", "enforce.trial=0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newMachine(t), t.TempDir(), c.settings...)
				noisy := r.add(c.noisy, 0.05)
				r.suffering(noisy)
				r.start()
				defer r.stop()
				r.learn()
				for _, round := range r.rounds(noisy) {
					t.Errorf("round %+v", round)
				}
			})
		})
	}
}

// rounds returns the rounds of the hour in which a task is loud and quiet. A write
// without a round is an error.
func (r *rig) rounds(noisy *guest) (all []*incident.Round) {
	r.t.Helper()
	wrote := 0
	r.write = func(string, string) error { wrote++; return nil }
	r.comeAndGo(noisy)
	found := r.incidents()
	if len(found) == 0 {
		r.t.Error("nothing was found, so this says nothing")
	}
	for _, inc := range found {
		all = append(all, inc.Rounds...)
	}
	if len(all) == 0 && wrote > 0 {
		r.t.Errorf("%d limits were written", wrote)
	}
	return all
}

// If enforcement is turned on at run time, trials start from then on. If it is turned
// off again, a trial's limit is lifted. A likely suspect is named in any mode.
func TestTrialsGoWithTheMode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		again := func(want string) incident.Record {
			t.Helper()
			noisy.set(1.5)
			r.pass(3*time.Minute - 20*time.Second)
			if got := r.values[noisy.limit()]; got != want {
				t.Errorf("the limit is %q, want %q", got, want)
			}
			all := r.incidents()
			return all[len(all)-1]
		}
		if inc := again("max"); inc.Antagonists != 1 || inc.Outcome != plan.WouldCap {
			t.Errorf("by advice: %+v", inc)
		}
		noisy.set(0.05)
		r.pass(30*time.Minute + 20*time.Second) // the incident closes
		r.do(enforcing("on", "test"))
		inc := again("0.1")
		if inc.Antagonists != 1 || inc.Suspects[0].Level != detect.Likely || len(inc.Rounds) != 1 || !inc.Rounds[0].Trial || !strings.HasPrefix(inc.Rounds[0].Why, "trial: ") {
			t.Errorf("turned on: %+v", inc)
		}
		r.do(enforcing("advise", "test"))
		if got := r.values[noisy.limit()]; got != "max" {
			t.Errorf("turned back, the limit is %q", got)
		}
		noisy.set(0.05)
		r.pass(30*time.Minute + 20*time.Second)
		if inc := again("max"); inc.Antagonists != 1 || inc.Outcome != plan.WouldCap {
			t.Errorf("by advice again: %+v", inc)
		}
	})
}
