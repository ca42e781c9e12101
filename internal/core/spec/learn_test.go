package spec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// seen is one sample that teaches.
type seen struct {
	at        sample.Millis
	task      uint64
	cpu, cost float32
	machine   uint64 // 0: one machine has all
}

// hoursOf summarises samples, one Hour for each hour and part.
func hoursOf(parts int, all ...seen) []Hour {
	by := map[[2]int64]*Hour{}
	for i, s := range all {
		k := [2]int64{int64(HourOf(s.at)), int64(i % parts)}
		h := by[k]
		if h == nil {
			h = &Hour{Start: HourOf(s.at)}
			by[k] = h
		}
		h.Newest = max(h.Newest, s.at)
		h.Machines = append(h.Machines, MachineHour{Machine: s.machine, Cost: stat.Moments{N: 1, W: 1, W2: 1, Mean: float64(s.cost)}, CPU: float64(s.cpu),
			Tasks: []TaskSamples{{s.task, 1}}})
		h.Usage[UsageBin(s.cpu)].Add(float64(s.cost), 1)
		h.Sketch.Add(s.cost, 1)
	}
	var hours []Hour
	for _, h := range by {
		hours = append(hours, *h)
	}
	return hours
}

const day = sample.Millis(24 * HourMS)

// began is midnight of some day.
var began = sample.At(time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC))

// job makes samples of five tasks, ten an hour each, from from to to. cost is the normal
// cost at a time. Tasks are numbered from first on.
func job(r *rand.Rand, first uint64, from, to sample.Millis, cost func(sample.Millis) float64) (all []seen) {
	for at := from; at < to; at += HourMS / 10 {
		for task := range uint64(5) {
			all = append(all, seen{at: at, task: first + task, cpu: 0.5 + r.Float32(), cost: float32(cost(at) + 0.1*r.NormFloat64())})
		}
	}
	return all
}

func steady(mean float64) func(sample.Millis) float64 {
	return func(sample.Millis) float64 { return mean }
}

// Learn gives the result of the definition, sample by sample, however the samples are
// split into hours.
func TestLearnIsTheWeightedSampleStatistic(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := job(r, 1, began, began+5*day, steady(1.8))
	now := began + 5*day + 1234567
	var w, w2, mean, cpu float64
	weight := func(s seen) float64 {
		return math.Pow(0.9, float64(HourOf(now)-HourOf(s.at))/float64(day))
	}
	for _, s := range all {
		w, w2 = w+weight(s), w2+weight(s)*weight(s)
		mean, cpu = mean+weight(s)*float64(s.cost), cpu+weight(s)*float64(s.cpu)
	}
	mean, cpu = mean/w, cpu/w
	m2 := 0.0
	var costs []float64
	for _, s := range all {
		m2 += weight(s) * (float64(s.cost) - mean) * (float64(s.cost) - mean)
		costs = append(costs, float64(s.cost))
	}
	var first Computed
	for parts := 1; parts <= 3; parts++ {
		l := Learn(Paper(), key, hoursOf(parts, all...), now)
		for name, pair := range map[string][2]float64{"mean": {l.Mean, mean}, "σ": {l.StdDev, math.Sqrt(m2 / (w - w2/w))}, "CPU": {l.CPUMean, cpu}} {
			if math.Abs(pair[0]-pair[1]) > 1e-12*pair[1] {
				t.Errorf("in %d parts: %s %.15g, want %.15g", parts, name, pair[0], pair[1])
			}
		}
		if l.State != Ready || l.Samples != int64(len(all)) || l.Tasks != 5 || l.Since != 0 || l.Last != all[len(all)-1].at || l.Updated != now {
			t.Errorf("in %d parts: %+v", parts, l.Spec)
		}
		if parts == 1 {
			first = l
		}
		about := cmp.Options{cmpopts.EquateApprox(1e-9, 0), cmpopts.IgnoreUnexported(Computed{})}
		if diff := cmp.Diff(first, l, about); diff != "" {
			t.Errorf("in %d parts: %s", parts, diff)
		}
	}
	// Weights over a few days hardly move the quantiles of a stable distribution.
	slices.Sort(costs)
	for p, got := range map[float64]float64{0.5: first.P50, 0.9: first.P90, 0.99: first.P99} {
		if want := costs[int(p*float64(len(costs)))]; math.Abs(got-want) > 0.02*want {
			t.Errorf("quantile %v: %v, want about %v", p, got, want)
		}
	}
}

// A cost that depends on the load is split by load.
func TestCostsByUsage(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var all []seen
	for i := range 3000 {
		cpu := []float32{0.3, 1.5, 40}[i%3]
		all = append(all, seen{at: began + sample.Millis(i), task: uint64(i % 5), cpu: cpu, cost: []float32{1, 2, 3}[i%3] + float32(0.1*r.NormFloat64())})
	}
	l := Learn(Paper(), key, hoursOf(1, all...), began+HourMS)
	if len(l.Usage) != 3 {
		t.Fatalf("got %+v", l.Usage)
	}
	for i, want := range []UsageCost{{0.25, 1000, 1, 0.1}, {1, 1000, 2, 0.1}, {16, 1000, 3, 0.1}} {
		if diff := cmp.Diff(want, l.Usage[i], cmpopts.EquateApprox(0.05, 0.01)); diff != "" {
			t.Error(diff)
		}
	}
	for i := range UsageBins {
		from := usageFrom(i)
		if UsageBin(float32(from)) != i || i > 0 && UsageBin(math.Nextafter32(float32(from), 0)) != i-1 {
			t.Errorf("level %d does not begin at %v", i, from)
		}
	}
}

func TestStatesOfALearntSpec(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	full := job(r, 1, began, began+11*HourMS, steady(1))
	of := func(keep func(i int, s seen) bool) (some []seen) {
		for i, s := range full {
			if keep(i, s) {
				some = append(some, s)
			}
		}
		return some
	}
	for name, c := range map[string]struct {
		samples []seen
		later   sample.Millis
		state   State
		tasks   int
	}{
		"five tasks, a hundred samples each": {full, 0, Ready, 5},
		"four tasks":                         {of(func(_ int, s seen) bool { return s.task < 5 }), 0, Insufficient, 4},
		"the fifth short of a hundred":       {of(func(i int, s seen) bool { return s.task < 5 || i < 495 }), 0, Learning, 4},
		"nothing new for seven days":         {full, 7 * day, Ready, 5},
		"nothing new for longer":             {full, 7*day + HourMS, Stale, 5},
		"nothing at all":                     {nil, 0, Insufficient, 0},
	} {
		last := began + 11*HourMS - HourMS/10
		if l := Learn(Paper(), key, hoursOf(1, c.samples...), last+c.later); l.State != c.state || l.Tasks != c.tasks {
			t.Errorf("%s: %v with %d tasks, want %v with %d", name, l.State, l.Tasks, c.state, c.tasks)
		}
	}
	if l := Learn(Paper(), key, hoursOf(1, full...), began+2*HourMS); l.Samples != 150 {
		t.Errorf("%d samples, want the 150 of hours that have begun", l.Samples)
	}
}

// When history is kept, and when it is dropped.
func TestHistoryIsKeptUnlessTheDistributionShifts(t *testing.T) {
	const days = 10
	night := func(at sample.Millis) float64 { // a third of the day it costs much more
		if at%day < 8*HourMS {
			return 2
		}
		return 1
	}
	change := began + 7*day
	for name, c := range map[string]struct {
		from  uint64 // first task after the change
		cost  func(sample.Millis) float64
		since sample.Millis
		mean  float64
		end   sample.Millis
	}{
		"a new binary that costs the same": {100, steady(1), 0, 1, began + days*day},
		"a new binary that costs somewhat more": {100, func(at sample.Millis) float64 {
			if at < change {
				return 1
			}
			return 1.15
		}, 0, 0, began + days*day},
		"a new binary that costs far more": {100, func(at sample.Millis) float64 {
			if at < change {
				return 1
			}
			return 1.5
		}, change, 1.5, began + days*day},
		"the same tasks, which cost far less from then on": {1, func(at sample.Millis) float64 {
			if at < change {
				return 1
			}
			return 0.5
		}, change, 0.5, began + days*day},
		"far more, but for less than a day": {1, func(at sample.Millis) float64 {
			if at < change {
				return 1
			}
			return 1.5
		}, 0, 0, change + 23*HourMS},
		"another cost at night": {1, night, 0, 4.0 / 3, began + days*day},
	} {
		r := rand.New(rand.NewPCG(7, 8))
		all := job(r, 1, began, change, c.cost)
		all = append(all, job(r, c.from, change, c.end, c.cost)...)
		l := Learn(Paper(), key, hoursOf(2, all...), c.end)
		if l.Since != c.since || l.State != Ready {
			t.Errorf("%s: %v since %v, want since %v", name, l.State, l.Since.Time(), c.since.Time())
		}
		if c.mean > 0 && math.Abs(l.Mean-c.mean) > 0.02 {
			t.Errorf("%s: mean %v, want %v", name, l.Mean, c.mean)
		}
		if c.since == 0 && l.Samples != int64(len(all)) {
			t.Errorf("%s: %d of %d samples count", name, l.Samples, len(all))
		}
	}
	// Two shifts: the history begins at the second.
	r := rand.New(rand.NewPCG(9, 9))
	all := job(r, 1, began, began+3*day, steady(1))
	all = append(all, job(r, 1, began+3*day, began+6*day, steady(3))...)
	all = append(all, job(r, 1, began+6*day, began+9*day, steady(2))...)
	if l := Learn(Paper(), key, hoursOf(1, all...), began+9*day); l.Since != began+6*day || math.Abs(l.Mean-2) > 0.02 {
		t.Errorf("after two shifts: since %v, mean %v", l.Since.Time(), l.Mean)
	}
	// One task that changed is not a new distribution of the job: too few for a spec.
	all = job(r, 1, began, began+6*day, steady(1))
	all = slices.DeleteFunc(all, func(s seen) bool { return s.at >= began+3*day && s.task != 1 })
	for i := range all {
		if all[i].at >= began+3*day {
			all[i].cost = 5
		}
	}
	if l := Learn(Paper(), key, hoursOf(1, all...), began+6*day); l.Since != 0 {
		t.Errorf("one task made the job's history be dropped: since %v", l.Since.Time())
	}
}

// A lasting shift that is too small to drop the history is followed by weight, at the
// rate of the paper's ageing, and further every day.
func TestALastingShiftIsFollowed(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 11))
	all := job(r, 1, began, began+7*day, steady(1))
	all = append(all, job(r, 1, began+7*day, began+14*day, steady(1.15))...)
	before := 1.0
	for _, days := range []sample.Millis{8, 10, 12, 14} {
		now := began + days*day
		var until []seen
		for _, s := range all {
			if s.at < now {
				until = append(until, s)
			}
		}
		l := Learn(Paper(), key, hoursOf(1, until...), now)
		old := math.Pow(0.9, float64(days-7)) * (1 - math.Pow(0.9, 7))
		share := (1 - math.Pow(0.9, float64(days-7))) / (1 - math.Pow(0.9, float64(days-7)) + old)
		if want := 1 + 0.15*share; math.Abs(l.Mean-want) > 0.005 || l.Mean <= before {
			t.Errorf("%d days after: mean %v, want %v and more than %v", days-7, l.Mean, want, before)
		}
		before = l.Mean
	}
}

func TestHashTaskTellsTasksApart(t *testing.T) {
	got := map[uint64]string{}
	for m := range 300 {
		for n := range 100 {
			machine, name := fmt.Sprint("host-", m), fmt.Sprint("/pods/", n)
			h := HashTask(machine, name)
			if other, ok := got[h]; ok {
				t.Fatalf("%s %s and %s are one", machine, name, other)
			}
			got[h] = machine + " " + name
		}
	}
	if HashTask("ab", "c") == HashTask("a", "bc") {
		t.Error("where the machine's name ends does not matter")
	}
	// The hash is stored on disk.
	if got := HashTask("", ""); got != 0xaf63bd4c8601b7df {
		t.Errorf("the hash of nothing and nothing is %#x", got)
	}
}
