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
	Since sample.Millis
	// Machines is the number of machines that the spec was learnt from. Out are those that
	// were left out because their costs are far from the others' (HashMachine), OutCount their
	// number: another engine does not say which.
	Machines, OutCount int
	Out                []uint64
	// Of all samples, also of machines that are left out. No task is judged by these; Sigmas are
	// of the same samples.
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
	hour     sample.Millis
	machines []machineSum     // by id
	tasks    map[uint64]int64 // samples of each; nil once the spec is ready
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
// History is kept over restarts and new binaries of a job, and a change of its cost is followed as fast
// as the weights allow. Earlier history is dropped only if the cost has been different for a day, by
// two standard deviations and by more than the signal's least effect, with enough samples and tasks for
// a spec: the earlier history describes another program.
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
	b := base{hour: HourOf(now)}
	b.machines, b.tasks = p.sum(hours, b.hour)
	var sketch stat.Sketch
	var usage [UsageBins]stat.Moments
	for i := range hours {
		h := &hours[i]
		w := p.weight(h.Start, b.hour)
		for j := range h.Usage {
			merge(&usage[j], h.Usage[j], w)
		}
		sketch.Merge(&h.Sketch, w)
		l.Last = max(l.Last, h.Newest)
	}
	l.set(p, robust(k.Signal, b.machines), now)
	if len(hours) > 0 {
		l.P50, l.P90, l.P99 = sketch.Quantile(0.5), sketch.Quantile(0.9), sketch.Quantile(0.99)
		l.Sigmas = p.sigmas(&sketch, l.Samples)
	}
	for j := range usage {
		if m := &usage[j]; m.N > 0 {
			l.Usage = append(l.Usage, UsageCost{usageFrom(j), m.N, m.Mean, m.StdDev()})
		}
	}
	if l.State == Ready || l.State == Stale {
		b.tasks = nil // further tasks are not counted
	}
	l.base = b
	return l
}

// set sets what follows from the machines' sums.
func (l *Computed) set(p Params, r robustSum, now sample.Millis) {
	l.Samples, l.CPUMean, l.Mean, l.StdDev = r.cost.N, r.cpu, r.cost.Mean, r.cost.StdDev()
	l.SelfSamples, l.SelfMean, l.SelfStdDev = 0, 0, 0
	if r.self.N >= int64(p.MinSamples) {
		l.SelfSamples, l.SelfMean, l.SelfStdDev = r.self.N, r.self.Mean, r.self.StdDev()
	}
	l.Tasks, l.Machines, l.Out, l.OutCount = r.full, r.machines, r.out, len(r.out)
	l.State = p.state(r.counts, now.Sub(l.Last))
}

// sum adds up hours by machine, as of an hour, and the samples of each task.
func (p Params) sum(hours []Hour, as sample.Millis) ([]machineSum, map[uint64]int64) {
	var all []machineSum
	at := map[uint64]int{}
	tasks := map[uint64]int64{}
	for i := range hours {
		w := p.weight(hours[i].Start, as)
		for j, k := 0, -1; j < len(hours[i].Machines); j++ {
			h := &hours[i].Machines[j]
			if k++; k >= len(all) || all[k].id != h.Machine { // mostly in the order of the hour before
				var known bool
				if k, known = at[h.Machine]; !known {
					k = len(all)
					at[h.Machine], all = k, append(all, machineSum{id: h.Machine})
				}
			}
			m := &all[k]
			m.add(h.Cost, h.Self, h.CPU, w)
			for _, t := range h.Tasks {
				before := tasks[t.Task]
				tasks[t.Task] = before + t.N
				m.count(p, before, before+t.N)
			}
		}
	}
	slices.SortFunc(all, func(a, b machineSum) int { return cmp.Compare(a.id, b.id) })
	return all, tasks
}

// count records that the samples of one of the machine's tasks went from before to now.
func (m *machineSum) count(p Params, before, now int64) {
	if before == 0 && now > 0 {
		m.tasks++
	}
	if before < int64(p.MinSamples) && now >= int64(p.MinSamples) {
		m.full++
	}
}

// merge adds moments with w times their weight.
func merge(into *stat.Moments, m stat.Moments, w float64) {
	m.Decay(w)
	into.Merge(m)
}

// state is the state of a spec whose newest sample has the age since.
func (p Params) state(c counts, since time.Duration) State {
	switch {
	case c.tasks < p.MinTasks || c.machines < p.MinMachines:
		return Insufficient
	case c.full < p.MinTasks || c.fullMachines < p.MinMachines:
		return Learning
	case since > p.StaleAfter:
		return Stale
	}
	return Ready
}

// tidy sorts hours, merges those of one start, and leaves out future and empty hours. Each
// machine is in an hour once then.
func tidy(hours []Hour, now sample.Millis) []Hour {
	slices.SortStableFunc(hours, func(a, b Hour) int { return cmp.Compare(a.Start, b.Start) })
	n := 0
	for i := range hours {
		h := &hours[i]
		switch {
		case h.Start > now || len(h.Machines) == 0:
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
	for i := range hours[:n] {
		hours[i].unite()
	}
	return hours[:n]
}

// merge adds samples of the same hour.
func (h *Hour) merge(o *Hour) {
	for i := range h.Usage {
		h.Usage[i].Merge(o.Usage[i])
	}
	h.Sketch.Merge(&o.Sketch, 1)
	h.Machines = append(slices.Clip(h.Machines), o.Machines...)
	h.Newest = max(h.Newest, o.Newest)
}

// unite merges what the hour has of the same machine, and sorts the machines.
func (h *Hour) unite() {
	sorted := true
	for i := 1; i < len(h.Machines); i++ {
		sorted = sorted && h.Machines[i-1].Machine < h.Machines[i].Machine
	}
	if sorted {
		return
	}
	slices.SortStableFunc(h.Machines, func(a, b MachineHour) int { return cmp.Compare(a.Machine, b.Machine) })
	n := 0
	for _, m := range h.Machines {
		if n == 0 || h.Machines[n-1].Machine != m.Machine {
			m.Tasks = slices.Clip(m.Tasks)
			h.Machines[n] = m
			n++
			continue
		}
		to := &h.Machines[n-1]
		to.CPU += (m.CPU - to.CPU) * m.Cost.W / (to.Cost.W + m.Cost.W)
		to.Cost.Merge(m.Cost)
		to.Self.Merge(m.Self)
		to.Tasks = append(to.Tasks, m.Tasks...)
	}
	h.Machines = h.Machines[:n]
}

// cost is what the hour's samples say together. No machine weighs more than the median machine.
func (h *Hour) cost() stat.Moments {
	weights := make([]float64, len(h.Machines))
	for i := range h.Machines {
		weights[i] = h.Machines[i].Cost.W
	}
	slices.Sort(weights)
	most := weights[(len(weights)-1)/2]
	var all stat.Moments
	for i := range h.Machines {
		c := h.Machines[i].Cost
		merge(&all, c, min(1, most/c.W))
	}
	return all
}

// shift returns the index of the hour from which on the cost differs from before, 0 if
// there is none: where the means of what comes before and of what comes from there on are
// furthest apart, in standard deviations. The machines must show it together (robust): one of
// them cannot have the history of all dropped.
func (p Params) shift(k Key, hours []Hour) int {
	if len(hours) < 2 {
		return 0
	}
	costs, after := make([]stat.Moments, len(hours)), make([]stat.Moments, len(hours)+1)
	for i := len(hours) - 1; i >= 0; i-- {
		costs[i] = hours[i].cost()
		after[i] = costs[i]
		after[i].Merge(after[i+1])
	}
	end, least := hours[len(hours)-1].Start+HourMS, int64(p.MinTasks)*int64(p.MinSamples)
	best, at := 0.0, 0
	before := costs[0]
	for i := 1; i < len(hours); i++ {
		a, b := &after[i], before
		before.Merge(costs[i])
		if end-hours[i].Start < minShiftDuration || a.N < least {
			break
		}
		if b.N < least || !moved(k.Signal, &b, a) {
			continue
		}
		if first := costs[i].Mean; math.Abs(first-a.Mean) > math.Abs(first-b.Mean) {
			continue // the shift has not begun yet
		}
		if d := math.Abs(a.Mean-b.Mean) / max(a.StdDev(), b.StdDev()); d > best { // infinite if nothing varies
			best, at = d, i
		}
	}
	if at == 0 {
		return 0
	}
	of := func(hours []Hour) robustSum {
		machines, _ := p.sum(hours, end)
		return robust(k.Signal, machines)
	}
	b, a := of(hours[:at]), of(hours[at:])
	if p.state(a.counts, 0) != Ready || !moved(k.Signal, &b.cost, &a.cost) {
		return 0
	}
	return at
}

// moved reports whether two distributions of a cost differ by more than the signal's least
// effect and by shiftSigmas.
func moved(signal sample.SignalName, b, a *stat.Moments) bool {
	s, _ := sample.LookupSignal(signal)
	by := math.Abs(a.Mean - b.Mean)
	return by >= max(s.EffectAbs, s.EffectRel*b.Mean) && by > shiftSigmas*max(a.StdDev(), b.StdDev())
}
