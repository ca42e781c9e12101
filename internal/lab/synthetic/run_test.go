package synthetic

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

func pair(t study.Model, forTime time.Duration) study.Cell {
	e := study.Environment{Name: "sim", Driver: study.Synthetic, Truth: &t}
	return study.Cell{Kind: study.Main, For: forTime, Place: study.Placement{Name: "per-core"}, Parts: []study.Part{
		{Role: "fg", Environment: e, Measure: true, Slots: 2},
		{Role: "bg", Environment: e, Slot: 1, Slots: 2, Load: study.Load{Control: "duty-cycle"}, Target: 0.5}}}
}

// throughput is that of a part, in iterations a second.
func throughput(p result.Part, length time.Duration) float64 {
	return float64(len(p.Iterations)) / length.Seconds()
}

func TestModelIsWhatItSays(t *testing.T) {
	const length = 200 * time.Second
	for _, c := range []struct {
		name  string
		truth study.Model
		idle  bool
		order int
		want  float64 // iterations a second of fg
	}{
		{"alone but for half a neighbour", study.Model{Base: 100 * time.Millisecond, Slope: 0.4}, false, 0, 10 / 1.2},
		{"an idle neighbour", study.Model{Base: 100 * time.Millisecond, Slope: 0.4}, true, 0, 10},
		{"another placement's factor", study.Model{Base: 100 * time.Millisecond, Slope: 0.4, ByPlace: map[string]study.Share{"per-core": 0.5}}, false, 0, 10 / 1.1},
		{"drift at the end", study.Model{Base: 100 * time.Millisecond, Drift: 0.05}, true, 9, 10 / 1.0475},
		{"noise", study.Model{Base: 100 * time.Millisecond, Noise: 0.05, AR1: 0.5}, true, 0, 10},
	} {
		cell := pair(c.truth, length)
		cell.Parts[1].Idle = c.idle
		run, seconds := Run(&cell, RunID{Order: c.order, Runs: 10, Seed: 1})
		if got := throughput(run.Parts[0], length); math.Abs(got/c.want-1) > 0.02 {
			t.Errorf("%s: %.3f iterations/s, want %.3f", c.name, got, c.want)
		}
		if !run.Simulated || len(seconds) != 200 {
			t.Errorf("%s: simulated %t, %d seconds", c.name, run.Simulated, len(seconds))
		}
		again, _ := Run(&cell, RunID{Order: c.order, Runs: 10, Seed: 1})
		if d := cmp.Diff(run, again); d != "" {
			t.Errorf("%s: another record for the same arguments", c.name)
		}
	}
}

// Noise is correlated as the model specifies: the deviations of successive seconds.
func TestNoise(t *testing.T) {
	cell := pair(study.Model{Base: time.Millisecond, Noise: 0.1, AR1: 0.8}, 2000*time.Second)
	cell.Parts = cell.Parts[:1]
	run, _ := Run(&cell, RunID{Seed: 3})
	counts := make([]float64, 2000)
	for _, it := range run.Parts[0].Iterations {
		counts[min(int(it.To/time.Second), 1999)]++
	}
	mean, num, den := 0.0, 0.0, 0.0
	for _, c := range counts {
		mean += c / float64(len(counts))
	}
	for s := 1; s < len(counts); s++ {
		num += (counts[s] - mean) * (counts[s-1] - mean)
		den += (counts[s] - mean) * (counts[s] - mean)
	}
	if rho := num / den; math.Abs(rho-0.8) > 0.06 {
		t.Errorf("correlated by %.2f from second to second, want 0.8", rho)
	}
	if sd := math.Sqrt(den/float64(len(counts))) / mean; math.Abs(sd-0.1) > 0.02 {
		t.Errorf("deviates by %.3f, want 0.1", sd)
	}
}

func TestDeathsAndEnergy(t *testing.T) {
	cell := pair(study.Model{Base: time.Second, FailRate: 0.3, Power: 100, PerCPU: 20}, 100*time.Second)
	cell.Parts[1].Target = 0
	cell.Steps = []study.Step{{Role: "bg", Target: 0.5, From: 0, To: 50 * time.Second, Settle: 10 * time.Second},
		{Role: "bg", Target: 1, From: 50 * time.Second, To: 100 * time.Second, Trail: 10 * time.Second}}
	died := 0
	for n := range 400 {
		run, _ := Run(&cell, RunID{N: n, Seed: 5})
		if run.Verdict == result.Invalid {
			if died++; run.Overlap >= 1 || run.Evidence[0].Reason != result.CorunnerDied {
				t.Errorf("%+v", run.Evidence)
			}
		}
		for i, want := range []float64{40 * (100 + 20 + 10), 40 * (100 + 20 + 20)} {
			if got := run.Steps[i].Joules; math.Abs(got/want-1) > 0.01 {
				t.Errorf("step %d took %.0f J, want %.0f", i, got, want)
			}
		}
	}
	if died < 90 || died > 150 {
		t.Errorf("%d of 400 died, want some 120", died)
	}
}
