// Package together is what the tests share in which several tasks hurt another only together:
// on this machine, and in a guest.
package together

import (
	"maps"
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

// NoIncident fails the test if a member alone was accused of hurting the victim, or capped.
func (m Members) NoIncident(t *testing.T, victim sample.TaskName, all []incident.Record) {
	t.Helper()
	for _, inc := range all {
		if len(inc.Rounds) > 0 || len(inc.Findings) > 0 && inc.Victim.Name == victim {
			t.Fatalf("one of them alone is an incident: %s, %+v", inc.Reason, inc.Findings)
		}
	}
}

// Relieved reports whether all members were capped together in an incident, and not only as a trial,
// with the victim at most at its threshold.
func (m Members) Relieved(all []incident.Record) bool {
	return slices.ContainsFunc(all, m.relieved)
}

func (m Members) relieved(inc incident.Record) bool {
	return slices.ContainsFunc(inc.Rounds, func(r *plan.Round) bool {
		return !r.Trial && len(r.Tasks()) == len(m) && r.Outcome == plan.TruePositive && float64(r.CostUnder) <= inc.Threshold
	})
}

// Named reports whether such an incident names all members as one group.
func (m Members) Named(all []incident.Record) bool {
	return slices.ContainsFunc(all, func(inc incident.Record) bool {
		groups := map[string]int{}
		for _, f := range inc.Findings {
			if f.Group != "" && slices.Contains(m, f.Suspect.Name) {
				groups[f.Group]++
			}
		}
		return m.relieved(inc) && slices.Contains(slices.Collect(maps.Values(groups)), len(m))
	})
}

// Innocents fails the test if another task was accused of hurting the victim, or capped. What tasks that
// are not protected do to each other is not judged: the members share a CPU.
func (m Members) Innocents(t *testing.T, victim sample.TaskName, all []incident.Record) {
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
			if inc.Victim.Name == victim && !slices.Contains(m, f.Suspect.Name) {
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
			t.Logf("figure:   %s: %s, trial %v: %.3g, then %.3g in %d samples, %s", r.From.Time().Format("15:04:05.000"), r.Names(), r.Trial, float64(r.CostBefore), float64(r.CostUnder), r.Samples, r.Outcome)
		}
	}
}
