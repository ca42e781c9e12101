package spec

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Computed is a spec with the other statistics of its samples.
type Computed struct {
	Spec
	Last sample.Millis // newest sample
	// Since is the beginning of the history that counts: the distribution shifted there.
	// 0: all of it counts.
	Since         sample.Millis
	P50, P90, P99 float64     // of the cost, within stat.SketchAccuracy
	Usage         []UsageCost // levels with samples, in order

	base base
}

// UsageCost is what a job costs at a level of CPU usage.
type UsageCost struct {
	From    float64 `json:"from"` // CPU-s/s
	Samples int64   `json:"samples"`
	Mean    float64 `json:"mean"`
	StdDev  float64 `json:"stddev"`
}

// base is the state that learning continues from (Live), weighted by age as of an hour.
type base struct {
	hour      sample.Millis
	cost, cpu stat.Moments
	tasks     map[uint64]int64 // samples of each; nil once the spec is ready
}

const (
	// shiftSigmas is the number of standard deviations by which the mean must move for
	// the earlier history to be dropped: by the paper's threshold every other normal
	// sample would otherwise be an outlier.
	shiftSigmas = 2
	// minShiftDuration is the least duration of a shift: what changes with the time of day belongs
	// to a job's normal distribution.
	minShiftDuration = sample.Millis(24 * HourMS)
)

// Learn computes a key's spec (CPI², section 3.1) from its hours, as of now. It sorts the
// hours and merges those of one start in place. Hours that begin after now do not count.
//
// History is kept over restarts and new binaries of a job, and a change of its cost is
// followed as fast as the weights allow. Earlier history is dropped only if the cost has
// been different for a day, by two standard deviations and by more than the signal's
// least effect, with enough samples and tasks for a spec: the earlier history describes
// another program.
func Learn(p Params, k Key, hours []Hour, now sample.Millis) Computed {
	hours = tidy(hours, now)
	l := Computed{Spec: Spec{Key: k, Updated: now}}
	for {
		at := p.shift(k, hours)
		if at == 0 {
			break
		}
		hours = hours[at:]
		l.Since = hours[0].Start
	}
	b := base{hour: HourOf(now), tasks: map[uint64]int64{}}
	var sketch stat.Sketch
	var usage [UsageBins]stat.Moments
	for i := range hours {
		h := &hours[i]
		w := p.weight(h.Start, b.hour)
		merge(&b.cost, h.Cost, w)
		merge(&b.cpu, stat.Moments{N: h.Cost.N, W: h.Cost.W, W2: h.Cost.W2, Mean: h.CPU}, w)
		for j := range h.Usage {
			merge(&usage[j], h.Usage[j], w)
		}
		sketch.Merge(&h.Sketch, w)
		for _, t := range h.Tasks {
			b.tasks[t.Task] += t.N
		}
		l.Last = max(l.Last, h.Newest)
	}
	l.Tasks = p.enough(b.tasks)
	l.State = p.state(len(b.tasks), l.Tasks, now.Sub(l.Last))
	l.Samples, l.CPUMean, l.Mean, l.StdDev = b.cost.N, b.cpu.Mean, b.cost.Mean, b.cost.StdDev()
	if len(hours) > 0 {
		l.P50, l.P90, l.P99 = sketch.Quantile(0.5), sketch.Quantile(0.9), sketch.Quantile(0.99)
	}
	for j := range usage {
		if m := &usage[j]; m.N > 0 {
			l.Usage = append(l.Usage, UsageCost{usageFrom(j), m.N, m.Mean, m.StdDev()})
		}
	}
	if l.State == Ready || l.State == Stale {
		b.tasks = nil // no further task can change the state
	}
	l.base = b
	return l
}

// merge adds moments with w times their weight.
func merge(into *stat.Moments, m stat.Moments, w float64) {
	m.Decay(w)
	into.Merge(m)
}

// enough counts the tasks with enough samples.
func (p Params) enough(tasks map[uint64]int64) int {
	n := 0
	for _, samples := range tasks {
		if samples >= int64(p.MinSamples) {
			n++
		}
	}
	return n
}

// state is the state of a spec of that many tasks, "enough" of them with enough samples,
// whose newest sample has the age since.
func (p Params) state(tasks, enough int, since time.Duration) State {
	switch {
	case tasks < p.MinTasks:
		return Insufficient
	case enough < p.MinTasks:
		return Learning
	case since > p.StaleAfter:
		return Stale
	}
	return Ready
}

// tidy sorts hours, merges those of one start, and leaves out future and empty hours.
func tidy(hours []Hour, now sample.Millis) []Hour {
	slices.SortStableFunc(hours, func(a, b Hour) int { return cmp.Compare(a.Start, b.Start) })
	n := 0
	for i := range hours {
		h := &hours[i]
		switch {
		case h.Start > now || h.Cost.N == 0:
			continue
		case n > 0 && hours[n-1].Start == h.Start:
			hours[n-1].merge(h)
			continue
		}
		if n != i {
			hours[n] = *h
		}
		n++
	}
	return hours[:n]
}

// merge adds samples of the same hour.
func (h *Hour) merge(o *Hour) {
	n, m := float64(h.Cost.N), float64(o.Cost.N)
	h.CPU = (n*h.CPU + m*o.CPU) / (n + m)
	h.Cost.Merge(o.Cost)
	for i := range h.Usage {
		h.Usage[i].Merge(o.Usage[i])
	}
	h.Sketch.Merge(&o.Sketch, 1)
	h.Tasks = append(slices.Clip(h.Tasks), o.Tasks...)
	h.Newest = max(h.Newest, o.Newest)
}

// shift returns the index of the hour from which on the cost differs from before, 0 if
// there is none: where the means of what comes before and of what comes from there on are
// furthest apart, in standard deviations.
func (p Params) shift(k Key, hours []Hour) int {
	if len(hours) < 2 {
		return 0
	}
	after := make([]stat.Moments, len(hours)+1)
	for i := len(hours) - 1; i >= 0; i-- {
		after[i] = hours[i].Cost
		after[i].Merge(after[i+1])
	}
	s, _ := sample.LookupSignal(k.Signal)
	end, least := hours[len(hours)-1].Start+HourMS, int64(p.MinTasks)*int64(p.MinSamples)
	best, at := 0.0, 0
	before := hours[0].Cost
	for i := 1; i < len(hours); i++ {
		a, b := &after[i], before
		before.Merge(hours[i].Cost)
		if end-hours[i].Start < minShiftDuration || a.N < least {
			break
		}
		moved, spread := math.Abs(a.Mean-b.Mean), max(a.StdDev(), b.StdDev())
		if b.N < least || moved < max(s.EffectAbs, s.EffectRel*b.Mean) || moved <= shiftSigmas*spread {
			continue
		}
		if first := hours[i].Cost.Mean; math.Abs(first-a.Mean) > math.Abs(first-b.Mean) {
			continue // the shift has not begun yet
		}
		if d := moved / spread; d > best { // infinite if nothing varies
			best, at = d, i
		}
	}
	if at > 0 {
		tasks := map[uint64]int64{}
		for i := at; i < len(hours); i++ {
			for _, t := range hours[i].Tasks {
				tasks[t.Task] += t.N
			}
		}
		if p.enough(tasks) < p.MinTasks {
			return 0
		}
	}
	return at
}
