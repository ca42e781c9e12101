// Package together is what the tests share in which several tasks hurt another only together:
// on this machine, and in a guest.
package together

import (
	"slices"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Members are the tasks that hurt together.
type Members []sample.TaskName

// TakeTurns lets one member work at a time, each for a while, until done.
func (m Members) TakeTurns(each time.Duration, work func(member sample.TaskName, on bool), done func() bool) {
	for turn := 0; !done(); turn++ {
		one := m[turn%len(m)]
		work(one, true)
		<-time.After(each)
		work(one, false)
	}
}

// NoIncident fails the test if a member alone was accused or capped.
func (m Members) NoIncident(t *testing.T, all []incident.Record) {
	t.Helper()
	for _, inc := range all {
		if len(inc.Rounds) > 0 || len(inc.Findings) > 0 {
			t.Fatalf("one of them alone is an incident: %s, %+v", inc.Reason, inc.Findings)
		}
	}
}

// Relieved returns the incident that names all members, with a round in which they were capped
// together and the victim was at most at its threshold; nil if there is none yet.
func (m Members) Relieved(all []incident.Record) *incident.Record {
	for i := range all {
		inc, named := &all[i], 0
		for _, f := range inc.Findings {
			if slices.Contains(m, f.Suspect.Name) {
				named++
			}
		}
		for _, r := range inc.Rounds {
			if named == len(m) && !r.Trial && len(r.Tasks()) == len(m) && r.Outcome == plan.TruePositive && float64(r.CostUnder) <= inc.Threshold {
				return inc
			}
		}
	}
	return nil
}

// Innocents fails the test if another task was accused or capped.
func (m Members) Innocents(t *testing.T, all []incident.Record) {
	t.Helper()
	for _, inc := range all {
		for _, r := range inc.Rounds {
			for _, c := range r.Tasks() {
				if !slices.Contains(m, c.Suspect.Name) {
					t.Errorf("%s was capped", c.Suspect.Name)
				}
			}
		}
		for _, f := range inc.Findings {
			if !slices.Contains(m, f.Suspect.Name) {
				t.Errorf("%s is accused: %s", f.Suspect.Name, f.Suspect.Why)
			}
		}
	}
}

// Log logs incidents with their rounds.
func Log(t *testing.T, all []incident.Record) {
	t.Helper()
	for _, inc := range all {
		t.Logf("figure: %s: %s, %s; %s; threshold %.3g", inc.ID, inc.Kind, inc.Reason, inc.NotDone, inc.Threshold)
		for _, r := range inc.Rounds {
			t.Logf("figure:   %s, trial %v: %.3g, then %.3g in %d samples, %s", r.Names(), r.Trial, float64(r.CostBefore), float64(r.CostUnder), r.Samples, r.Outcome)
		}
	}
}
