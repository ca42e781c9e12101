package detect

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// labelled is a case with known truth: the course of a victim minute by minute and its
// cause. The victim is task 1, its antagonists are tasks 2 and 3, six innocents follow:
// three with constant usage, three with high usage half of the time.
type labelled struct {
	name string
	// play returns, t minutes after the trouble can begin (before that there is none), the
	// victim's cost and usage and the antagonists' usages. hit is the factor on its normal
	// cost when it is hurt.
	play func(t int, hit float64, rng *rand.Rand) (cost, usage float64, antagonists [2]float64)
	// guilty: the antagonists cause it.
	guilty bool
	// own: the correct finding is a phase change.
	own bool
}

// on is a square wave with half-periods of k minutes, off first.
func on(t, k int) bool { return t >= 0 && t/k%2 == 1 }

func pick(yes bool, a, b float64) float64 {
	if yes {
		return a
	}
	return b
}

var labelledCases = []labelled{
	{"an antagonist in bursts", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(on(t, 4), hit, 1), 1, [2]float64{pick(on(t, 4), 1.5, 0.1), 0}
	}, true, false},
	{"the same, the victim's load changes by a third", func(t int, hit float64, rng *rand.Rand) (float64, float64, [2]float64) {
		return pick(on(t, 4), hit, 1), 0.7 + 0.6*rng.Float64(), [2]float64{pick(on(t, 4), 1.5, 0.1), 0}
	}, true, false},
	{"an antagonist that begins and stays", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(t >= 4, hit, 1), 1, [2]float64{pick(t >= 4, 1.5, 0), 0}
	}, true, false},
	{"one that was busy before and became busier", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(on(t, 4), hit, 1), 1, [2]float64{pick(on(t, 4), 2, 1), 0}
	}, true, false},
	{"two antagonists by turns", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		bad, first := on(t, 6), t%4 < 2
		return pick(bad, hit, 1), 1, [2]float64{pick(bad && first, 1.5, 0), pick(bad && !first, 1.5, 0)}
	}, true, false},
	{"an antagonist that came while the victim rested", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(t >= 12, hit, 1), pick(t >= 0 && t < 12, 0.05, 1), [2]float64{pick(t >= 6, 1.5, 0), 0}
	}, true, false},
	{"the victim goes to another level", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(t >= 4, hit, 1), 1, [2]float64{}
	}, false, true},
	{"the same next to a task that is always busy", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(t >= 4, hit, 1), 1, [2]float64{1.5, 0}
	}, false, true},
	{"the victim has more to do, and each piece costs more", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(on(t, 4), hit, 1), pick(on(t, 4), 0.5*1.6*hit, 0.5), [2]float64{1.5, 0}
	}, false, true},
	{"bimodal: costly where it uses less (case 3)", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(on(t, 4), hit, 1), pick(on(t, 4), 0.4, 1), [2]float64{1.5, 0}
	}, false, true},
	{"bursts of a task that cannot be seen", func(t int, hit float64, _ *rand.Rand) (float64, float64, [2]float64) {
		return pick(on(t, 4), hit, 1), 1, [2]float64{1.5, 0}
	}, false, false},
}

// verdict counts the results of a case: whether the first finding of a neighbour ranked an
// antagonist or an innocent first; whether a phase change was ever found; neither.
type verdict struct {
	guilty, innocent, own, none int
}

func (v *verdict) play(p Params, c labelled, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	hit := 2 + 3*rng.Float64()
	d := New(p)
	sig, _ := sample.LookupSignal(sample.CPI)
	accused, own := uint64(0), false
	for t := -15; t < 25; t++ {
		cost, usage, guilty := c.play(t, hit, rng)
		noisy := func(x float64) float64 { return max(0, x*(1+0.1*rng.NormFloat64())) }
		r := victim(1, noisy(cost))
		r.CPU, r.Spec = noisy(usage), ready(1, 0.15)
		r.Pressure = r.CPU
		row := []Reading{r, suspect(2, noisy(guilty[0])), suspect(3, noisy(guilty[1]))}
		for i := range uint64(3) {
			row = append(row, suspect(4+i, noisy(0.5)), suspect(7+i, noisy(pick(rng.IntN(2) == 0, 0.8, 0.05))))
		}
		at := sample.Millis(t+100) * minute
		d.Observe(sig, at, row)
		for _, f := range drain(d, at) {
			own = own || f.Kind == PhaseChange
			if f.Kind == Neighbour && accused == 0 {
				accused = f.Suspects[0].Key.Inode
			}
		}
	}
	switch {
	case c.guilty && (accused == 2 || accused == 3):
		v.guilty++
	case accused != 0:
		v.innocent++
	}
	if own {
		v.own++
	}
	if accused == 0 && !own {
		v.none++
	}
}

// TestPhaseChangesOnLabelledCases is the ablation of docs/design/0004: each switch alone
// and both, compared with rule quell without them. With -v it prints the table.
func TestPhaseChangesOnLabelledCases(t *testing.T) {
	const seeds = 25 // 200 give the figures of docs/design/0004
	base := paper(t, Quell)
	base.Switches.PhaseChange, base.Switches.LookBack = false, false
	change, back, both := base, base, base
	change.Switches.PhaseChange = true
	back.Switches.LookBack = true
	both.Switches.PhaseChange, both.Switches.LookBack = true, true
	rules := []struct {
		name string
		p    Params
	}{{"cpi2", paper(t, CPI2)}, {"quell without", base}, {"+ look_back", back}, {"+ phase_change", change}, {"quell", both}}
	var table strings.Builder
	for _, c := range labelledCases {
		fmt.Fprintf(&table, "\n%s\n", c.name)
		got := map[string]verdict{}
		for _, r := range rules {
			var v verdict
			for seed := range uint64(seeds) {
				v.play(r.p, c, seed)
			}
			got[r.name] = v
			percent := func(n int) float64 { return math.Round(1000*float64(n)/seeds) / 10 }
			fmt.Fprintf(&table, "  %-16s guilty %5.1f%%  innocent %5.1f%%  phase change %5.1f%%  nothing %5.1f%%\n",
				r.name, percent(v.guilty), percent(v.innocent), percent(v.own), percent(v.none))
		}
		with, without := got["quell"], got["quell without"]
		switch {
		case c.guilty && with.guilty < max(without.guilty-seeds/50, seeds/2):
			t.Errorf("%s: antagonists accused %d times, without the switches %d", c.name, with.guilty, without.guilty)
		case with.innocent > max(without.innocent/4, seeds/50):
			t.Errorf("%s: innocents accused %d times, without the switches %d", c.name, with.innocent, without.innocent)
		case c.own && with.own < seeds*19/20:
			t.Errorf("%s: %d of %d were found to be phase changes", c.name, with.own, seeds)
		case !c.own && with.own > seeds/20:
			t.Errorf("%s: %d of %d were taken for phase changes", c.name, with.own, seeds)
		}
	}
	t.Log(table.String())
}
