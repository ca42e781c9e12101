package detect

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// evident returns the parameters of rule evidence.
func evident(t testing.TB) Params {
	p := paper(t, EvidenceMethod)
	return p
}

// story plays minutes of a victim (task 1, 1 ± 0.1, threshold 1.2) whose cost depends on
// the tasks after it, with the given weights, and returns every finding. use returns the
// usage of each of them in a minute; hold returns whether it is limited.
func story(t *testing.T, minutes int, weights []float64, use func(minute, task int, rng *rand.Rand) float64, hold func(minute, task int) bool) []Finding {
	t.Helper()
	d := New(evident(t))
	rng := rand.New(rand.NewPCG(5, 7))
	sig := signal(t, sample.CPI)
	var all []Finding
	for m := range minutes {
		cost := 1.0
		row := []Reading{{}}
		for i, w := range weights {
			u := use(m, i, rng)
			r := suspect(uint64(i+2), u*(1+0.05*rng.NormFloat64()))
			if hold != nil && hold(m, i) {
				u = min(u, 0.1)
				r.Pressure, r.CPU, r.Flags = u, u, sample.Capped
			}
			cost += w * u
			row = append(row, r)
		}
		row[0] = victim(1, cost*(1+0.05*rng.NormFloat64())).with(func(r *Reading) { r.Spec = ready(1, 0.1) })
		at := sample.Millis(m+1) * minute
		d.Observe(sig, at, row)
		all = append(all, drain(d, at)...)
	}
	return all
}

// accused lists the first suspects of the findings that accuse, each once.
func accused(all []Finding) []uint64 {
	var who []uint64
	for _, f := range all {
		if f.Antagonists > 0 && !slices.Contains(who, f.Suspects[0].Key.Inode) {
			who = append(who, f.Suspects[0].Key.Inode)
		}
	}
	return who
}

// asked lists the first suspects of the findings that ask for a trial, each once.
func asked(all []Finding) []uint64 {
	var who []uint64
	for _, f := range all {
		if f.Trial && !slices.Contains(who, f.Suspects[0].Key.Inode) {
			who = append(who, f.Suspects[0].Key.Inode)
		}
	}
	return who
}

func TestEvidence(t *testing.T) {
	bursts := func(m int) float64 { return pick(m >= 20 && (m-20)/6%2 == 0, 2, 0.1) }
	steadily := func(rng *rand.Rand) float64 { return 0.8 + 0.1*rng.NormFloat64() }
	for _, c := range []struct {
		name           string
		minutes        int
		weights        []float64
		use            func(m, i int, rng *rand.Rand) float64
		hold           func(m, i int) bool
		accuse, trials []uint64
	}{
		{"a mild antagonist in bursts, which 0.35 cannot reach", 70, []float64{0.2, 0, 0}, func(m, i int, rng *rand.Rand) float64 {
			return [...]float64{bursts(m), steadily(rng), pick(rng.IntN(2) == 0, 1, 0)}[i]
		}, nil, []uint64{2}, []uint64{2}},
		{"a task that begins once and stays is named, and would be tried", 50, []float64{0.2, 0}, func(m, i int, rng *rand.Rand) float64 {
			return [...]float64{pick(m >= 30, 2, 0.1), steadily(rng)}[i]
		}, nil, []uint64{2}, []uint64{2}},
		{"held once, with relief, and bad again after: it is the one", 55, []float64{0.2, 0}, func(m, i int, rng *rand.Rand) float64 {
			return [...]float64{pick(m >= 30, 2, 0.1), steadily(rng)}[i]
		}, func(m, i int) bool { return i == 0 && m >= 38 && m < 42 }, []uint64{2}, []uint64{2}},
		{"busy for longer than is kept, and held once: that change was quell's doing", 110, []float64{0.2, 0}, func(m, i int, rng *rand.Rand) float64 {
			return [...]float64{pick(m >= 25, 2, 0.1), steadily(rng)}[i]
		}, func(m, i int) bool { return i == 0 && m >= 95 && m < 100 }, []uint64{2}, []uint64{2}},
		{"two that do the same at the same time are not told apart", 70, []float64{0.2, 0}, func(m, i int, _ *rand.Rand) float64 {
			return bursts(m)
		}, nil, nil, []uint64{2, 3}},
		{"three that hurt only together are all named", 90, []float64{0.12, 0.12, 0.12, 0}, func(m, i int, rng *rand.Rand) float64 {
			if i == 3 {
				return steadily(rng)
			}
			return pick(bursts(m) > 1 && (m+i)%7 != 0, 1.5, 0.1)
		}, nil, []uint64{2, 3, 4}, []uint64{2, 3, 4}},
		{"nobody", 90, []float64{0, 0}, func(m, i int, rng *rand.Rand) float64 {
			return pick(rng.IntN(4) == 0, 2, 0.1)
		}, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := story(t, c.minutes, c.weights, c.use, c.hold)
			got := accused(all)
			for _, who := range got {
				if !slices.Contains(c.accuse, who) {
					t.Errorf("task %d is accused", who)
				}
			}
			if len(c.accuse) > 0 && len(got) == 0 {
				t.Error("no task is accused")
			}
			for _, who := range asked(all) {
				if !slices.Contains(c.trials, who) {
					t.Errorf("task %d would be tried", who)
				}
			}
			if len(c.trials) > 0 && len(asked(all)) == 0 {
				t.Error("no task would be tried")
			}
		})
	}
}

// TestAHoldThatDoesNotHelpDenies: a bystander starts when the victim changes its level for
// good; limiting it does not reduce the victim's cost.
func TestAHoldThatDoesNotHelpDenies(t *testing.T) {
	use := func(m, i int, rng *rand.Rand) float64 {
		return [...]float64{pick(m >= 30, 2, 0.1), pick(m >= 30, 2, 0.1)}[i] // the first is the change of the victim's own level
	}
	d := New(evident(t))
	rng := rand.New(rand.NewPCG(5, 7))
	tried := false
	for m := range 60 {
		cost, u := 1+0.2*use(m, 0, rng), use(m, 1, rng)
		r := suspect(2, u*(1+0.05*rng.NormFloat64()))
		if m >= 38 && m < 42 {
			r = suspect(2, 0.1).with(func(r *Reading) { r.Flags = sample.Capped })
		}
		at := sample.Millis(m+1) * minute
		d.Observe(signal(t, sample.CPI), at, []Reading{r,
			victim(1, cost*(1+0.05*rng.NormFloat64())).with(func(r *Reading) { r.Spec = ready(1, 0.1) })})
		for _, f := range drain(d, at) {
			if m >= 41 && (f.Antagonists > 0 || f.Trial) {
				t.Errorf("minute %d: %v, trial %v: it was held in vain", m, f.Kind, f.Trial)
			}
			tried = tried || f.Trial
		}
	}
	if !tried {
		t.Error("it was never worth a trial, so this says nothing")
	}
}

// TestACoVictimsUsageIsItsWork: a co-victim that uses more CPU for the same work explains
// the victim's cost as well as the antagonist does, but did no more work.
func TestACoVictimsUsageIsItsWork(t *testing.T) {
	d := New(evident(t))
	rng := rand.New(rand.NewPCG(1, 2))
	var all []Finding
	for m := range 70 {
		hit := pick(m >= 20 && (m-20)/6%2 == 0, 1.5, 1)
		noisy := func(x float64) float64 { return x * (1 + 0.04*rng.NormFloat64()) }
		row := []Reading{victim(1, noisy(hit)).with(func(r *Reading) { r.Spec = ready(1, 0.1) })}
		co := victim(2, noisy(hit)).with(func(r *Reading) { r.Spec = ready(1, 0.1) })
		co.Task.Class = sample.Batch
		co.Pressure, co.CPU = co.Cost*0.9, co.Cost*0.9
		row = append(row, co)
		at := sample.Millis(m+1) * minute
		d.Observe(signal(t, sample.CPI), at, row)
		all = append(all, drain(d, at)...)
	}
	if who := append(accused(all), asked(all)...); len(who) != 0 {
		t.Errorf("tasks %v are named", who)
	}
}

// TestWeighIsLeastSquares: the result for each suspect is that of ordinary least squares
// over the same suspects, by the textbook's normal equations.
func TestWeighIsLeastSquares(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 9))
	several, exact := 0, 0
	for range 200 {
		const n = 50
		d := New(evident(t))
		sig := signal(t, sample.CPI)
		hurt := [4]float64{rng.Float64() * 0.4, rng.Float64() * 0.4, 0, rng.Float64() * 0.2}
		left := make([]int, 4)
		on := make([]bool, 4)
		for m := range n {
			cost := 1.0
			row := []Reading{{}}
			for i, h := range hurt {
				if left[i]--; left[i] < 0 {
					left[i], on[i] = 2+rng.IntN(8), !on[i]
				}
				u := pick(on[i], 2, 0.1) * (1 + 0.1*rng.NormFloat64())
				cost += h * u
				row = append(row, suspect(uint64(i+2), u))
			}
			row[0] = victim(1, cost*(1+0.05*rng.NormFloat64())).with(func(r *Reading) { r.Spec = ready(1, 0.1) })
			d.Observe(sig, sample.Millis(m+1)*minute, row)
		}
		s := d.series[sig.Name]
		victim := s.index[sample.TaskKey{Inode: 1}]
		d.exclude(s, victim)
		proofs := d.regress(s, victim)
		if len(proofs) < 2 {
			continue
		}
		several++
		x, y := mat.NewDense(n, len(proofs), nil), mat.NewVecDense(n, slices.Clone(d.regression.y))
		for k, p := range proofs {
			x.SetCol(k, d.regression.usageOf(p.slot))
		}
		var xtx, inv mat.Dense
		xtx.Mul(x.T(), x)
		if err := inv.Inverse(&xtx); err != nil {
			t.Fatal(err)
		}
		var xty, beta, e mat.VecDense
		xty.MulVec(x.T(), y)
		beta.MulVec(&inv, &xty)
		e.MulVec(x, &beta)
		e.SubVec(y, &e)
		variance := mat.Dot(&e, &e) / float64(n-len(proofs)-1)
		for k, p := range proofs {
			plain := beta.AtVec(k) / math.Sqrt(variance*inv.At(k, k))
			// The autocorrelation of both can only reduce z, and does not if one of them
			// has none.
			if math.Abs(p.z/plain-1) < 1e-9 {
				exact++
			}
			if p.z > plain*(1+1e-9) || p.z < plain/4 {
				t.Fatalf("z %.6f, least squares has %.6f before autocorrelation", p.z, plain)
			}
			level := d.regression.meanExcess(d.regression.usageOf(p.slot)) * beta.AtVec(k) / d.regression.meanExcess(d.regression.y)
			if beta.AtVec(k) > 0 && math.Abs(level-p.part) > 1e-6 {
				t.Fatalf("part %.6f, least squares has %.6f", p.part, level)
			}
		}
	}
	if several < 50 || exact < 50 {
		t.Errorf("only %d of 200 had several suspects in the model, only %d had z without autocorrelation", several, exact)
	}
}

// TestATrialsEndIsLookedAt: a task that begins once (minute 30) is limited for three
// minutes for a victim that requested a trial (minute 32, where statistics name it too). The
// result is analysed as soon as the hold is over (minute 36), and not only after three more
// outliers.
func TestATrialsEndIsLookedAt(t *testing.T) {
	const began, heldFrom, heldTo = 30, 33, 36
	for _, c := range []struct {
		name    string
		use     func(m int) float64
		hold    func(m int) bool
		accused []int // minutes in which it is accused, from heldFrom on
	}{
		{"it goes on, and the victim is bad again", func(m int) float64 { return pick(m >= began, 2, 0.1) },
			func(m int) bool { return m >= heldFrom && m < heldTo }, []int{36, 38, 39, 40, 41, 42, 43, 44, 45}},
		{"it stops for good", func(m int) float64 { return pick(m >= began && m < heldTo, 2, 0.1) },
			func(m int) bool { return m >= heldFrom && m < heldTo }, []int{36}},
		{"it is held on, for another reason", func(m int) float64 { return pick(m >= began, 2, 0.1) },
			func(m int) bool { return m >= heldFrom }, nil},
		{"once it is accused, the end of a cap is no news", func(m int) float64 { return pick(m >= began && m < 45, 2, 0.1) },
			func(m int) bool { return m >= heldFrom && m < heldTo || m >= 37 && m < 42 }, []int{36, 44}},
		{"a hold that comes long after the question is no answer", func(m int) float64 { return pick(m >= began && m < heldFrom, 2, 0.1) },
			func(m int) bool { return m >= 39 && m < 42 }, nil},
		{"a hold that was not requested is no trial", func(m int) float64 { return 0.1 },
			func(m int) bool { return m >= heldFrom && m < heldTo }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := story(t, 46, []float64{0.25, 0}, func(m, i int, rng *rand.Rand) float64 {
				return [...]float64{c.use(m), 0.8 + 0.1*rng.NormFloat64()}[i]
			}, func(m, i int) bool { return i == 0 && c.hold(m) })
			var got []int
			for _, f := range all {
				if m := int(f.At/minute) - 1; f.Antagonists > 0 && m >= heldFrom {
					got = append(got, m)
				}
			}
			if !slices.Equal(got, c.accused) {
				t.Errorf("accused after minutes %v, want %v", got, c.accused)
			}
		})
	}
}

// TestTheCostAfterATrialIsThatBeforeIt: the cost that a cap after a trial is compared with
// includes the bad intervals before the trial, and not only the first one after it, in
// which the suspect has hardly begun again.
func TestTheCostAfterATrialIsThatBeforeIt(t *testing.T) {
	const began, heldFrom, heldTo = 30, 33, 40
	all := story(t, 42, []float64{0.5, 0}, func(m, i int, rng *rand.Rand) float64 {
		return [...]float64{pick(m == heldTo, 1, pick(m >= began, 2, 0.1)), 0.8 + 0.1*rng.NormFloat64()}[i]
	}, func(m, i int) bool { return i == 0 && m >= heldFrom && m < heldTo })
	before, after := 0.0, 0.0
	for _, f := range all {
		switch m := int(f.At/minute) - 1; {
		case m < heldFrom:
			before = f.Cost
		case m == heldTo && f.Antagonists > 0:
			after = f.Cost
		}
	}
	if !(after > 0.9*before) {
		t.Errorf("cost %.3f before the trial, %.3f after it", before, after)
	}
}

// TestAHoldThatLeavesTheCostOverItsThresholdMayHelp: on the run queue a victim that waits
// twenty times as long as alone still waits over its threshold while the suspect is limited
// to a tenth of a CPU. A decrease of the cost to a fraction suffices; a hold that does not
// reduce it denies the suspect.
func TestAHoldThatLeavesTheCostOverItsThresholdMayHelp(t *testing.T) {
	for _, c := range []struct {
		under   float64 // s/CPU-s; alone 0.04, with the suspect 0.9; the threshold is 0.09
		accused bool
	}{{0.05, true}, {0.15, true}, {0.2, true}, {0.8, false}, {0.9, false}} {
		d := New(evident(t))
		rng := rand.New(rand.NewPCG(5, 11))
		var all, after []Finding // after: findings after the hold
		held := 0
		for m := range 66 {
			v, s := victim(1, 0.04), suspect(2, 0.02)
			if m >= 24 && (m-24)/6%2 == 0 {
				v.Cost, s = 0.9, suspect(2, 0.75)
			}
			if held > 0 { // the suspect's demand goes on
				v.Cost, s = c.under, suspect(2, 0.1)
				s.Flags, held = sample.Capped, held-1
			}
			v.Cost *= 1 + 0.1*rng.NormFloat64()
			v.Spec = ready(0.04, 0.01)
			at := sample.Millis(m+1) * minute
			d.Observe(signal(t, sample.RunQ), at, []Reading{v, s, suspect(3, 0.3*(1+0.3*rng.NormFloat64()))})
			for _, f := range drain(d, at) {
				if f.Trial && len(asked(all)) == 0 {
					held = 7
				} else if held == 0 {
					after = append(after, f)
				}
				all = append(all, f)
			}
		}
		for _, f := range all { // the cost under the hold must not be part of the cost with the suspect
			if f.Antagonists > 0 && f.Cost < 0.8 {
				t.Errorf("cost %g under the hold: the finding has cost %g, want about 0.9", c.under, f.Cost)
			}
		}
		if got := accused(after); len(asked(all)) == 0 || slices.Contains(got, 2) != c.accused || slices.Contains(got, 3) {
			t.Errorf("a cost of %g under the hold: tried %v, accused %v", c.under, asked(all), got)
		}
	}
}

// TestWhatWasCountedBeforeTheSpecCounts: the neighbour begins when the victim's spec has
// just become ready. Costs from before that can be judged by the new spec.
func TestWhatWasCountedBeforeTheSpecCounts(t *testing.T) {
	for _, before := range []bool{true, false} {
		d := New(evident(t))
		rng := rand.New(rand.NewPCG(5, 11))
		var all []Finding
		for m := range 24 {
			v := victim(1, pick(m >= 20, 1.5, 1)*(1+0.05*rng.NormFloat64()))
			v.Spec = ready(1, 0.1)
			if m < 19 {
				v.Spec.State = spec.Learning
				if !before {
					v.Cost = math.NaN()
				}
			}
			at := sample.Millis(m+1) * minute
			d.Observe(signal(t, sample.CPI), at, []Reading{v, suspect(2, pick(m >= 20, 2, 0.1)*(1+0.05*rng.NormFloat64()))})
			all = append(all, drain(d, at)...)
		}
		if got := len(asked(all)) > 0; got != before {
			t.Errorf("its cost was counted before: %v; a trial was asked for: %v", before, got)
		}
	}
}

// TestWhoUsesNextToNothingIsNoRival: another task moves with the antagonist, but its usage
// is so low that it could not be accused.
func TestWhoUsesNextToNothingIsNoRival(t *testing.T) {
	for _, much := range []float64{0.01, 0.5} {
		all := story(t, 90, []float64{0.2, 0}, func(m, i int, _ *rand.Rand) float64 {
			return pick(m >= 20 && (m-20)/6%2 == 0, 2, 0.1) * [...]float64{1, much}[i]
		}, nil)
		if got := slices.Contains(accused(all), 2); got != (much < 0.1) {
			t.Errorf("another uses %g of what it does: accused %v", much, got)
		}
	}
}
