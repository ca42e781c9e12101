package spec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

var waitKey = Key{Job: "web", Platform: "p", Signal: sample.RunQ, Variant: "ebpf"}

// waits are the hours of machines with two tasks each, sixty samples of each task an hour: the
// threads of a task wait for each other, by machine, and hardly for others.
func waits(hours int, self map[uint64]float64) (all []Hour) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range hours {
		h := Hour{Start: began + sample.Millis(n)*HourMS, Newest: began + sample.Millis(n+1)*HourMS - 1}
		for machine, mean := range self {
			m := MachineHour{Machine: machine, CPU: 1}
			for task := range uint64(2) {
				m.Tasks = append(m.Tasks, TaskSamples{10*machine + task, 60})
				for range 60 {
					m.Cost.Add(0.001, 1)
					if !math.IsNaN(mean) {
						m.Self.Add(math.Abs(mean+0.01*r.NormFloat64()), 1)
					}
				}
			}
			h.Machines = append(h.Machines, m)
		}
		all = append(all, h)
	}
	return all
}

// TestTheSelfPartIsLearnt: with the weights and bounds of the cost, so that neither a machine
// that reports anything at all nor one that reports nothing moves it.
func TestTheSelfPartIsLearnt(t *testing.T) {
	now := began + 12*HourMS
	unknown := math.NaN()
	for name, c := range map[string]struct {
		machines   map[uint64]float64
		samples    int64
		mean, most float64 // most of σ
	}{
		"all machines alike":            {map[uint64]float64{1: 0.3, 2: 0.3, 3: 0.3, 4: 0.3}, 4 * 1440, 0.3, 0.011},
		"one lies":                      {map[uint64]float64{1: 0.3, 2: 0.3, 3: 0.3, 4: 0.3, 5: 9000}, 4 * 1440, 0.3, 0.011},
		"one says there is none":        {map[uint64]float64{1: 0.3, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0}, 4 * 1440, 0.3, 0.011},
		"one does not count it":         {map[uint64]float64{1: 0.3, 2: 0.3, 3: 0.3, 4: unknown}, 3 * 1440, 0.3, 0.011},
		"it differs by machine":         {map[uint64]float64{1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, 4 * 1440, 0.25, 0.2},
		"none counts it":                {map[uint64]float64{1: unknown, 2: unknown, 3: unknown}, 0, 0, 0},
		"a single-threaded job has 0":   {map[uint64]float64{1: 0, 2: 0, 3: 0}, 3 * 1440, 0.008, 0.011},
		"one machine counts it, of two": {map[uint64]float64{1: unknown, 2: 0.3}, 1440, 0.3, 0.011},
	} {
		p := clusterParams()
		p.MinMachines, p.MinTasks = 2, 4
		l := Learn(p, waitKey, waits(12, c.machines), now)
		if l.State != Ready || l.SelfSamples != c.samples || math.Abs(l.SelfMean-c.mean) > 0.002 || l.SelfStdDev > c.most || c.samples > 0 && l.SelfStdDev == 0 {
			t.Errorf("%s: %v, %d samples, mean %v, σ %v; want %d, %v, at most %v", name, l.State, l.SelfSamples, l.SelfMean, l.SelfStdDev, c.samples, c.mean, c.most)
		}
		if l.OutCount != 0 || math.Abs(l.Mean-0.001) > 1e-9 {
			t.Errorf("%s: it changed what the cost is: %v, %d machines left out", name, l.Mean, l.OutCount)
		}
	}
}

// Fewer samples than a task needs to count are none: their σ would be one of chance.
func TestAFewSamplesAreNoSelfPart(t *testing.T) {
	h := waits(12, map[uint64]float64{1: math.NaN(), 2: math.NaN(), 3: math.NaN()})
	var few stat.Moments
	for range Paper().MinSamples - 1 {
		few.Add(0.3, 1)
	}
	h[3].Machines[1].Self = few
	if l := Learn(clusterParams(), waitKey, h, began+12*HourMS); l.SelfSamples != 0 || l.SelfMean != 0 {
		t.Errorf("%d samples, mean %v", l.SelfSamples, l.SelfMean)
	}
}

// An own history learns it only from samples that have it, and publishes it with the mean.
func TestOwnHistoryOfTheSelfPart(t *testing.T) {
	h := NewHistory(OwnHistory())
	at := began
	add := func(n int, self float64) Spec {
		for range n {
			at += minuteMS
			h.Add(waitKey, sample.TaskKey{Inode: 1}, at, 1, 0.001, self)
		}
		s, _ := h.Lookup(waitKey, at)
		return s
	}
	if s := add(110, math.NaN()); s.State != Ready || s.SelfSamples != 0 {
		t.Errorf("without it: %+v", s)
	}
	if s := add(30, 0.3); s.SelfSamples != 0 || s.SelfMean != 0 {
		t.Errorf("before the spec is computed again: %+v", s)
	}
	if s := add(30, 0.3); s.SelfSamples < 30 || math.Abs(s.SelfMean-0.3) > 1e-9 {
		t.Errorf("after that: %+v", s)
	}
	again := NewHistory(OwnHistory())
	if n := again.Restore(h.Records()); n != 0 {
		t.Errorf("%d records were refused", n)
	}
	before, _ := h.Lookup(waitKey, at)
	if s, _ := again.Lookup(waitKey, at); s != before {
		t.Errorf("restored %+v\nbefore %+v", s, before)
	}
}

// Between two computations the self part is that of the last one.
func TestLiveKeepsTheSelfPart(t *testing.T) {
	cut := began + 12*HourMS
	base := Learn(clusterParams(), waitKey, waits(12, map[uint64]float64{1: 0.3, 2: 0.3, 3: 0.3, 4: 0.3}), cut)
	l := NewLive(clusterParams(), hold, 1<<20)
	l.Rebase(cut, []Computed{base})
	for i := range sample.Millis(2000) {
		l.Add(&sample.Sample{TS: cut + i*1000, Machine: "m", Job: waitKey.Job, Platform: waitKey.Platform, Signal: waitKey.Signal, Variant: waitKey.Variant, Task: "/a", CPU: 1, Cost: 0.002})
	}
	l.Advance(cut + HourMS)
	got := l.keys[0].merged(clusterParams(), cut+HourMS)
	if got.Samples <= base.Samples || got.SelfSamples != base.SelfSamples || got.SelfMean != base.SelfMean || got.SelfStdDev != base.SelfStdDev {
		t.Errorf("live %+v\nbase %+v", got.Spec, base.Spec)
	}
}

// What a sample says of the self part: its extras are seconds, and the length of its interval is
// not in it. The agent's own spec has the same (pipeline.Interval).
func TestSelfOfASample(t *testing.T) {
	runq, _ := FilterOf(sample.RunQ)
	cpi, _ := FilterOf(sample.CPI)
	nan, inf := math.NaN(), math.Inf(1)
	for name, c := range map[string]struct {
		rule        Filter
		cost        float32
		other, self float64
		want        float64
	}{
		"two CPU-s, 1 s behind others, 0.5 s for itself":   {runq, 0.5, 1, 0.5, 0.25},
		"it never waited for itself":                       {runq, 0.5, 1, 0, 0},
		"nor for others":                                   {runq, 0, 0, 0, 0},
		"it waited only for itself: its CPU time is lost":  {runq, 0, 0, 0.5, nan},
		"not counted":                                      {runq, 0.5, 1, nan, nan},
		"nor the wait for others":                          {runq, 0.5, nan, 0.5, nan},
		"a made-up wait":                                   {runq, 0.5, 1, 1e9, nan},
		"an infinite one":                                  {runq, 0.5, 1, inf, nan},
		"a negative one":                                   {runq, 0.5, 1, -1, nan},
		"the wait for others is made up: no self is known": {runq, 0.5, -1, 0.5, nan},
		"another signal's cost is no wait":                 {cpi, 2, 1, 0.5, nan},
	} {
		if got := c.rule.Self(c.cost, c.other, c.self); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
