package detect

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Reading is the data of one task for one signal in one sampling interval.
type Reading struct {
	Task *sample.Task
	// Cost in the signal's unit; NaN if it could not be counted.
	Cost float64
	// Self is the same resource spent on the task itself, if SelfKnown; else 0.
	Self      float64
	SelfKnown bool
	// OwnApart: Cost excludes waiting on the task itself and on its own quota.
	OwnApart bool
	// Inner: CPU is a part of another task's, which contains this one.
	Inner    bool
	CPU      float64 // CPU-s/s
	Rate     float64 // activity, 1/s
	Pressure float64 // what the signal is correlated with: CPU-s/s
	Stolen   float64 // share of the machine's CPU time stolen, 0..1
	// Misses are its misses of the last-level cache per instruction; 0 if they were not
	// counted. Nothing is judged by them.
	Misses float64
	Flags  sample.Flags
	// HeldBy is the cgroup above the task that ran out of CPU quota, if the flag Throttled
	// is due to that cgroup and not to the task's own quota.
	HeldBy string
	// Reach is the set of numbered resources of the signal's domain that the task can use;
	// nil if not known, which counts as all of them.
	Reach sample.Set
	// Spec is the normal cost of its job; judged only if Ready. nil: not known.
	Spec *spec.Spec
	// Served lists the tasks that the signal's queue served while this task waited in it;
	// nil if that was not counted. Observe does not retain the slice.
	Served []Served
	// Wanted is the time for which the task was served or waited behind others, Waited the
	// time it waited, and Niced the part of Waited by threads with low priority (niced or
	// SCHED_IDLE); s/s, summed over its threads, requests or packets, together with Served.
	Wanted, Waited, Niced float64
	// Demand is its load on the queue, as far as that does not depend on other tasks:
	// CPU-s/s that it ran or waited for itself, requests/s or packets/s; with Served.
	Demand float64
}

// Served is how long a queue served one other task while a task waited in it.
type Served struct {
	By   sample.TaskKey // Outside's key for what ran outside any task
	Time float64        // s/s, of all the task's threads, requests or packets that waited
	// Fair is the share, 0..1, of the time in which the task wanted to be served that By's
	// weight entitles it to; 0 if not known.
	Fair float64
}

// Verdict is Observe's result for one reading.
type Verdict struct {
	Judged  bool    // it was compared with a ready spec
	Outlier bool    // it was over the threshold
	Anomaly bool    // with this outlier the task has an anomaly
	Sane    bool    // active and inside the signal's sane range: may train a spec
	Limit   float64 // the threshold, if judged
	// SelfMade: the wait of this outlier may be of the task's own making (Reading.selfMade).
	SelfMade bool
}

// Counts reports whether the cost says how much the task suffers: it was judged, and its
// work took longer if it waited. Detector.Window has the cost of exactly these intervals.
func (v *Verdict) Counts() bool { return v.Judged && v.Sane }

// Detector follows all tasks of one machine.
type Detector struct {
	params   Params
	series   map[sample.SignalName]*series
	work     *series // the signal of the tasks' own work, nil if there is none
	queue    anomalies
	analysed sample.Millis
	began    bool
	rejected map[sample.SignalName]uint64
	// excluded is, for each slot, why its task cannot hurt the victim of the analysis; "" if it can.
	excluded []string
	served   map[sample.TaskKey]bool // in the accounts of the analysis
	// least is the lowest probability that is listed; leastLogOdds is made of it.
	least, leastLogOdds float64
	limits              bool // in the rows of the analysis some task was limited
	// buffers of the analysis
	num, den    []float64
	pairs       []pair
	top, bottom []candidate
	out         []Suspect
	regression  regression
	scales      statisticsBuffers
	sums        accountTotals
	weighed     []weighing
	explained   []SuspectStatistics
	verdicts    []Verdict
}

// New returns a Detector without any observations.
func New(p Params) *Detector {
	return &Detector{params: p, series: map[sample.SignalName]*series{}, queue: newAnomalies(), served: map[sample.TaskKey]bool{}, rejected: map[sample.SignalName]uint64{}}
}

// Params returns the detector's parameters.
func (d *Detector) Params() Params { return d.params }

// Rejected counts readings whose cost was outside the signal's sane range (switch Bounds), or is
// no cost at all.
func (d *Detector) Rejected(s sample.SignalName) uint64 { return d.rejected[s] }

// Observe processes the readings of one signal for the interval that ended at the given
// time. It returns one verdict per reading, in the same order; the slice is valid until the
// next call. Intervals must be in order of time; an interval that is not after the last one
// is ignored completely. Of intervals with the same end, signals per unit of work must come
// before the others, whose judgement depends on them.
func (d *Detector) Observe(sig sample.Signal, at sample.Millis, readings []Reading) []Verdict {
	s := d.series[sig.Name]
	if s == nil {
		s = newSeries(sig)
		d.series[sig.Name] = s
		if sig.OwnWork {
			d.work = s
		}
	}
	d.verdicts = slices.Grow(d.verdicts[:0], len(readings))[:len(readings)]
	clear(d.verdicts)
	end := at.Add(-d.params.kept())
	row := s.begin(at, end, end.Add(-d.params.Memory))
	if row == nil {
		return d.verdicts
	}
	for i, next := 0, 0; i < len(readings); i++ {
		slot := s.slot(readings[i].Task, next)
		next = slot + 1
		if slot >= s.columns && !s.quiet(&readings[i]) {
			slot = s.column(slot)
		}
		d.verdicts[i] = d.judge(s, row, slot, at, &readings[i])
		if row.ownCost(slot) > 0 {
			s.tasks[slot].counted, s.tasks[slot].lastCounted = true, at
		}
	}
	if d.params.Switches.Evidence {
		d.review(s)
	}
	d.queue.settle()
	return d.verdicts
}

// judge stores one reading and judges it.
func (d *Detector) judge(s *series, row *row, slot int, at sample.Millis, r *Reading) Verdict {
	var v Verdict
	t := &s.tasks[slot]
	if t.task != *r.Task { // a comparison takes less time than a copy
		t.task = *r.Task
	}
	t.reach, t.flags = r.Reach, r.Flags
	if r.Flags&sample.Restarted != 0 {
		s.reset(slot)
	}
	if r.Flags&sample.Capped != 0 {
		row.cause[slot], row.held = limited, true
	}
	if r.Pressure > 0 && r.Pressure <= math.MaxFloat32 { // otherwise it is invalid
		row.pressure[slot] = float32(r.Pressure)
	}
	if r.Misses > 0 {
		row.miss(slot, r.Misses)
	}
	if math.IsNaN(r.Cost) || r.Flags&sample.Split != 0 {
		return v
	}
	if d.params.Switches.Bounds && !s.signal.Sane(r.Cost) || !(r.Cost >= 0 && r.Cost <= stat.MaxMeasured) {
		d.rejected[s.signal.Name]++
		return v
	}
	if slot < s.columns {
		row.cost[slot] = float32(r.Cost)
	}
	if !s.signal.Active(r.CPU, r.Rate, r.Cost) || r.Flags&sample.Capped != 0 {
		return v
	}
	v.Sane = true
	if r.Spec == nil || r.Spec.State != spec.Ready && !r.Spec.Provisional {
		if r.Flags&(sample.Throttled|sample.Stolen) == 0 {
			row.cause[slot] = noSpec
		}
		return v
	}
	if t.spec != *r.Spec {
		t.spec = *r.Spec
	}
	t.limit, t.mild = d.params.threshold(&s.signal, r.Spec.Mean, r.Spec.StdDev, r.Spec.Sigmas), false
	if d.params.Switches.Evidence && s.signal.PerWork {
		t.limit, t.mild = t.level.limitFor(r.Cost, r.Spec.Mean, r.Spec.StdDev, t.limit)
	}
	v.Judged, v.Limit = true, t.limit
	if d.params.Switches.Evidence && s.signal.Domain == sample.SharedCPU && t.unit.unharmed(r.Cost, d.unitOf(r.Task.Key, at), t.limit) {
		row.cause[slot], v.Sane = unharmed, false // so long a wait must not become part of the spec
		return v
	}
	v.Outlier = r.Cost > t.limit
	cause := d.cause(&s.signal, r, t.limit)
	row.cause[slot] = cause
	if d.params.Switches.Evidence {
		t.accounts.keep(at, at.Add(-d.params.OutlierWindow), r, cause)
	}
	if cause == good {
		return v
	}
	v.SelfMade = s.signal.Domain == sample.SharedCPU && r.selfMade(&t.accounts.usual)
	if cause == byQuota {
		t.heldBy = r.HeldBy
	}
	t.bad = append(t.bad, mark{at, cause})
	keep := at.Add(-d.params.OutlierWindow)
	t.bad = slices.DeleteFunc(t.bad, func(m mark) bool { return m.at <= keep })
	n := 0
	for _, m := range t.bad {
		if m.cause == cause {
			n++
		}
	}
	if n >= d.params.Outliers {
		v.Anomaly = cause == byNeighbour
		d.queue.add(anomaly{signal: s, victim: r.Task.Key, kind: kindOf[cause], at: at}, r.Task)
	}
	return v
}

// review queues every victim whose requested trial has just ended: in the first interval after the
// trial, and in each bad interval of the task within the next OutlierWindow. The task was known to
// suffer when the trial was requested, so no further outliers are required.
func (d *Detector) review(s *series) {
	row := s.rows[len(s.rows)-1]
	for i := range s.tasks[:s.columns] {
		t := &s.tasks[i]
		if !t.used || t.trialRequested == 0 {
			continue
		}
		suspect, known := s.index[t.trialSuspect]
		if !known {
			continue
		}
		since, over := s.sinceTrial(suspect, t.trialRequested, d.params.OutlierWindow)
		c := row.cause[i]
		if over && since < d.params.OutlierWindow && (c == byNeighbour || c == good && since == 0) {
			d.queue.add(anomaly{signal: s, victim: t.task.Key, kind: Neighbour, at: row.at, review: true}, &t.task)
		}
	}
}

// cause is why an interval was bad for a task, or that it was good.
type cause uint8

const (
	absent cause = iota // not counted or not judged: no pair
	good
	byNeighbour // or by no known task
	byQuota
	bySteal
	bySelf
	limited  // not judged: quell limited it
	noSpec   // not judged: there was no spec yet
	unharmed // not judged: it waited, and its work took no longer
)

// counted reports whether the task's cost was counted in an interval that says something on
// its suspects.
func (c cause) counted() bool { return c == good || c == byNeighbour || c == noSpec }

// judged reports whether the task's cost was compared with its spec.
func (c cause) judged() bool { return c != absent && c != limited && c != noSpec && c != unharmed }

var kindOf = [...]Kind{byNeighbour: Neighbour, byQuota: OwnQuota, bySteal: Steal, bySelf: SelfWait}

func (d *Detector) cause(sig *sample.Signal, r *Reading, limit float64) cause {
	outlier, own := r.Cost > limit, d.params.Switches.OwnCauses
	// Findings on a task's own faults are only for tasks that may be helped: a batch job
	// that uses up its quota is normal.
	served := r.Task.MayBeHelped()
	switch {
	case !outlier && own && served && r.Flags&sample.Throttled != 0:
		return byQuota
	case !outlier && own && served && r.Self > 0 && r.Spec.SelfSamples > 0 &&
		r.Self > d.params.threshold(sig, r.Spec.SelfMean, r.Spec.SelfStdDev, 0):
		return bySelf
	case !outlier:
		return good
	case own && !r.OwnApart && r.Flags&sample.Throttled != 0:
		return byQuota
	case own && r.Flags&sample.Stolen != 0 && stealExplains(sig, r):
		return bySteal
	}
	return byNeighbour
}

// stealExplains reports whether stolen time makes up at least half of the cost's excess
// over its mean. Time stolen while another task was on the CPU counts as waiting for it, so
// s/(1−s) stolen seconds come with each second that ran. A cost per unit of work is
// compared by ratio, a wait by its absolute value.
func stealExplains(sig *sample.Signal, r *Reading) bool {
	if r.Stolen >= 1 {
		return true
	}
	excess := r.Cost - r.Spec.Mean
	if sig.EffectAbs == 0 && r.Spec.Mean > 0 {
		excess /= r.Spec.Mean
	}
	return r.Stolen/(1-r.Stolen) >= excess/2
}

// Next analyses one queued anomaly (anomalies), if there is one and the last analysis is at least Params.Pace ago
// (CPI², section 4.2: at most one a second, so that the analysis does not disturb the machine). Call it
// until it returns false. The Finding's slices are valid until the next call.
func (d *Detector) Next(now sample.Millis) (Finding, bool) {
	for d.Waiting() {
		if d.began && now.Sub(d.analysed) < d.params.Pace {
			return Finding{}, false
		}
		a := d.queue.next()
		slot, ok := a.signal.index[a.victim]
		if !ok || slot >= a.signal.columns {
			continue // forgotten in the meantime
		}
		f := d.analyse(a, slot)
		switch {
		case a.review && (f.Antagonists == 0 || f.Bad == 0):
			continue // it proved no antagonist: the state is unchanged
		case !a.review && f.Bad < d.params.Outliers:
			continue // the task has restarted in the meantime
		}
		d.analysed, d.began = now, true
		return f, true
	}
	return Finding{}, false
}

// Waiting reports whether anomalies are queued for Next.
func (d *Detector) Waiting() bool { return len(d.queue.all) > 0 }

// Ended drops the anomalies of a task that has ended. It is a suspect until Forget.
func (d *Detector) Ended(k sample.TaskKey) {
	d.queue.ended(k)
}

// Forget removes a task that has ended, as victim and as suspect.
func (d *Detector) Forget(k sample.TaskKey) {
	for _, s := range d.series {
		s.forget(k)
	}
}
