package detect

import (
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// The threshold is reduced only if a task is mildly worse for ten intervals.
func TestLevel(t *testing.T) {
	const mean, sd, usual = 1, 0.1, 1.2
	repeat := func(n int, costs ...float64) (all []float64) {
		for range n {
			all = append(all, costs...)
		}
		return all
	}
	for _, c := range []struct {
		name  string
		costs []float64
		limit float64 // after the last cost
	}{
		{"as usual", repeat(10, 1), usual},
		{"mildly worse, not long enough", repeat(9, 1.16), usual},
		{"mildly worse for long", repeat(10, 1.16), 1.08},
		{"by less than 1.3 sigma", repeat(20, 1.12), usual},
		{"three outliers are no level", append(repeat(7, 1), 5, 5, 5), usual},
		{"outliers most of the time need none", repeat(5, 1.1, 1.3, 1.3), usual},
		{"some outliers within a level", append(repeat(7, 1.15), 1.3, 1.3, 1.3), 1 + 0.165/2},
		{"it is over", append(repeat(10, 1.16), repeat(10, 1)...), usual},
	} {
		var l recentCost
		var limit float64
		var mild bool
		for _, cost := range c.costs {
			limit, mild = l.limitFor(cost, mean, sd, usual)
		}
		if limit < c.limit-1e-6 || limit > c.limit+1e-6 || mild != (c.limit < usual) {
			t.Errorf("%s: %.4f, mild %v; want %.4f", c.name, limit, mild, c.limit)
		}
	}
	var l recentCost
	for range 20 {
		if _, mild := l.limitFor(1.04, 1, 0.01, 1.05); mild {
			t.Error("4 sigma and 4 % are no level")
		}
	}
}

// Harm of 1.5 sigma that lasts makes few anomalies by outliers. The task that began with it
// is named each time, and no task is named if a victim has only its normal variation.
func TestMildHarmThatLasts(t *testing.T) {
	const hours = 9
	for _, harm := range []float64{0, 0.15} {
		rng := rand.New(rand.NewPCG(7, 8))
		d := New(evident(t))
		sig := signal(t, sample.CPI)
		named := map[sample.TaskKey]map[int]bool{} // and the stretches in which they were named
		for m := range hours * 60 {
			there := m >= 60 && m/30%2 == 0
			cost, use := 1.0, 0.05
			if there {
				cost, use = cost+harm, 1
			}
			at := sample.Millis(m+1) * minute
			d.Observe(sig, at, []Reading{
				victim(1, cost+0.1*rng.NormFloat64()).with(func(r *Reading) { r.Spec = ready(1, 0.1) }),
				suspect(2, use*(1+0.1*rng.NormFloat64())), suspect(3, 0.5*(1+0.3*rng.NormFloat64())),
			})
			for _, f := range drain(d, at) {
				for _, s := range f.Suspects[:f.Antagonists] {
					if named[s.Key] == nil {
						named[s.Key] = map[int]bool{}
					}
					named[s.Key][m/30] = true
				}
			}
		}
		want := 0
		if harm > 0 {
			want = (hours - 1) - 1 // except the first, which may be chance
		}
		if got := len(named[sample.TaskKey{Inode: 2}]); got < want || got > hours-1 || harm == 0 && len(named) > 0 || len(named) > 1 {
			t.Errorf("harm of %g: named %v, want in %d stretches at least", harm, named, want)
		}
	}
}

// What is left of mild harm under a limit is no anomaly, unless the limit is as old as everything that is kept, such as
// an operator's of a day.
func TestMildHarmNextToALimit(t *testing.T) {
	for from, want := range map[int]bool{0: true, 1: false} {
		var rows [][]Reading
		for i := range 45 {
			cost, flags := 1.0, sample.Flags(0)
			if i >= 30 {
				cost = 1.16
			}
			if i >= from {
				flags = sample.Capped
			}
			rows = append(rows, []Reading{
				victim(1, cost).with(func(r *Reading) { r.Spec = ready(1, 0.1) }),
				suspect(2, 0.1).with(func(r *Reading) { r.Flags = flags }),
			})
		}
		if got := findings(New(evident(t)), signal(t, sample.CPI), rows...); (len(got) > 0) != want {
			t.Errorf("limited from interval %d on: %d findings, want some: %v", from, len(got), want)
		}
	}
}

// A task that computes for two hours together with a victim and then streams through its
// cache is named for that, although it was busier before, when it hurt no task.
func TestOtherWorkSaysNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 8))
	d := New(evident(t))
	sig := signal(t, sample.CPI)
	first := -1
	for m := range 180 {
		own, use, cost := 1.2, 0.05, 1.0
		switch {
		case m >= 150:
			own, use, cost = 3.6, 0.8, 1.6
		case m >= 30 && m/15%2 == 0:
			own, use = 1.2, 1
		}
		at := sample.Millis(m+1) * minute
		noisy := suspect(2, use)
		noisy.Cost, noisy.Spec = own*(1+0.03*rng.NormFloat64()), ready(1.5, 2)
		d.Observe(sig, at, []Reading{
			victim(1, cost*(1+0.05*rng.NormFloat64())).with(func(r *Reading) { r.Spec = ready(1, 0.1) }),
			noisy, suspect(3, 0.5*(1+0.3*rng.NormFloat64())),
		})
		for _, f := range drain(d, at) {
			if f.Antagonists > 0 && first < 0 {
				first = m
				if f.Suspects[0].Key != (sample.TaskKey{Inode: 2}) {
					t.Errorf("minute %d: named %v", m, f.Suspects[0].Key)
				}
			}
		}
	}
	if first < 150 || first > 160 {
		t.Errorf("named in minute %d, want within ten of 150", first)
	}
}
