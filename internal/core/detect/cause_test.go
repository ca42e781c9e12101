package detect

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Four intervals, the first good. The change is made to the victim's reading
// in the last three; the spec is 1 ± 0.5, of its own wait 0.1 ± 0.1.
func TestWhatATaskDoesToItselfIsNotBlamedOnANeighbour(t *testing.T) {
	const none = numKinds // nothing is found
	cpi, runq := signal(t, sample.CPI), signal(t, sample.RunQ)
	throttled := func(r *Reading) { r.Flags |= sample.Throttled }
	apart := func(r *Reading) { r.OwnApart = true }
	batch := func(r *Reading) { r.Task.Class = sample.Batch }
	protected := func(r *Reading) { r.Task.Class, r.Task.Protected = sample.Batch, true }
	stolen := func(share float64) func(*Reading) {
		return func(r *Reading) { r.Flags |= sample.Stolen; r.Stolen = share }
	}
	half := func(r *Reading) { r.Spec.Mean, r.Spec.StdDev = 0.5, 0.25 }
	self := func(wait float64) func(*Reading) { return func(r *Reading) { r.Self, r.SelfKnown = wait, true } }
	unlearnt := func(r *Reading) { r.Spec.SelfSamples, r.Spec.SelfMean, r.Spec.SelfStdDev = 0, 0, 0 }
	for _, c := range []struct {
		name    string
		signal  sample.Signal
		cost    float64
		changes []func(*Reading)
		off, on Kind // of OwnCauses
	}{
		{"a neighbour", cpi, 4, nil, Neighbour, Neighbour},
		{"over its quota", cpi, 4, []func(*Reading){throttled}, Neighbour, OwnQuota},
		{"over its quota, which the cost leaves out", runq, 4, []func(*Reading){throttled, apart}, Neighbour, Neighbour},
		{"throttled at a normal cost", runq, 1, []func(*Reading){throttled, apart}, none, OwnQuota},
		{"a batch job that fills its quota is at work", runq, 1, []func(*Reading){throttled, apart, batch}, none, none},
		{"a protected one is told", runq, 1, []func(*Reading){throttled, apart, protected}, none, OwnQuota},
		{"three quarters stolen, cost quadrupled", cpi, 4, []func(*Reading){stolen(0.75)}, Neighbour, Steal},
		{"exactly half of the excess is stolen", cpi, 7, []func(*Reading){stolen(0.75)}, Neighbour, Steal},
		{"less than half of it is", cpi, 7.1, []func(*Reading){stolen(0.75)}, Neighbour, Neighbour},
		{"a little stolen does not explain much", cpi, 4, []func(*Reading){stolen(0.02)}, Neighbour, Neighbour},
		{"everything stolen", cpi, 4, []func(*Reading){stolen(1)}, Neighbour, Steal},
		{"stolen, but not noticeably", cpi, 4, []func(*Reading){func(r *Reading) { r.Stolen = 0.9 }}, Neighbour, Neighbour},
		{"a cost per work is compared by ratio: 8 times the mean", cpi, 4, []func(*Reading){half, stolen(0.64)}, Neighbour, Neighbour},
		{"a wait as it is: 3.5 s/s over the mean", runq, 4, []func(*Reading){half, stolen(0.64)}, Neighbour, Steal},
		{"stolen at a normal cost is no anomaly", cpi, 1, []func(*Reading){stolen(0.5)}, none, none},
		{"threads waiting for each other", runq, 1, []func(*Reading){self(0.31)}, none, SelfWait},
		{"as much as they always do", runq, 1, []func(*Reading){self(0.3)}, none, none},
		{"a spec that does not say how long they wait", runq, 1, []func(*Reading){self(0.31), unlearnt}, none, none},
		{"a batch job's threads", runq, 1, []func(*Reading){self(0.31), batch}, none, none},
		{"and for others: the cost leaves the own wait out", runq, 4, []func(*Reading){self(0.31), apart}, Neighbour, Neighbour},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows := rowsOf([]float64{1, c.cost, c.cost, c.cost}, []float64{0, 1, 1, 1})
			for i, row := range rows {
				row[0].Spec.SelfSamples, row[0].Spec.SelfMean, row[0].Spec.SelfStdDev = 100, 0.1, 0.1
				for _, change := range c.changes {
					if i > 0 {
						change(&row[0])
					}
				}
			}
			for own, want := range map[bool]Kind{false: c.off, true: c.on} {
				got := none
				for _, f := range findings(New(only(t, Switches{OwnCauses: own})), c.signal, rows...) {
					got = f.Kind
				}
				if got != want {
					t.Errorf("own causes %v: found kind %d, want %d", own, got, want)
				}
			}
		})
	}
}

// An interval that the victim explains itself is no evidence on other tasks, but does not
// hide a neighbour's effect in the intervals between.
func TestExplainedIntervalsAreNoPairs(t *testing.T) {
	rows := rowsOf([]float64{1, 4, 4, 4, 4, 4, 1}, []float64{0, 1, 1, 1, 1, 1, 0})
	rows[2][0].Flags = sample.Throttled
	rows[4][0].Flags = sample.Throttled
	all := findings(New(only(t, Switches{OwnCauses: true})), signal(t, sample.CPI), rows...)
	f := last(t, all)
	if len(all) != 1 || f.Kind != Neighbour || f.Bad != 3 || f.Pairs != 4 || f.Cost != 4 || !near(f.of(t, 2).Correlation, 0.5, 1e-6) {
		t.Errorf("%d findings, %+v", len(all), f)
	}
}

func TestOutliersOfDifferentCausesDoNotAddUp(t *testing.T) {
	rows := rowsOf([]float64{1, 4, 4, 4, 4}, []float64{0, 1, 1, 1, 1})
	rows[1][0].Flags = sample.Throttled
	rows[3][0].Flags = sample.Throttled
	if f := findings(New(only(t, Switches{OwnCauses: true})), signal(t, sample.CPI), rows...); len(f) != 0 {
		t.Errorf("two of each: found %+v", f)
	}
	if f := findings(New(only(t, Switches{})), signal(t, sample.CPI), rows...); len(f) != 2 {
		t.Errorf("without the switch they are one cause: %d findings", len(f))
	}
}

// If several quotas limit a task one after the other, the newest is named.
func TestAFindingNamesWhoseQuota(t *testing.T) {
	for _, c := range []struct{ by, want string }{{"/pod /pod /pod", "/pod"}, {"/slice /slice /pod", "/pod"}, {"/pod /pod own", ""}} {
		rows := rowsOf([]float64{1, 4, 4, 4}, []float64{0, 1, 1, 1})
		for i, by := range strings.Fields(c.by) {
			r := &rows[i+1][0]
			if r.Flags |= sample.Throttled; by != "own" {
				r.HeldBy = by
			}
		}
		f := last(t, findings(New(only(t, Switches{OwnCauses: true})), signal(t, sample.CPI), rows...))
		if f.Kind != OwnQuota || f.HeldBy != c.want {
			t.Errorf("%s: %v by %q, want %q", c.by, f.Kind, f.HeldBy, c.want)
		}
	}
	// A neighbour that is added later is not attributed to the quota.
	rows := rowsOf([]float64{1, 4, 4, 4, 4, 4, 4}, []float64{0, 0, 0, 0, 1, 1, 1})
	for _, row := range rows[1:4] {
		row[0].Flags, row[0].HeldBy = sample.Throttled, "/pod"
	}
	if f := last(t, findings(New(only(t, Switches{OwnCauses: true})), signal(t, sample.CPI), rows...)); f.Kind != Neighbour || f.HeldBy != "" {
		t.Errorf("%v by %q", f.Kind, f.HeldBy)
	}
}
