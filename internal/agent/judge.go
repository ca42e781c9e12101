package agent

import (
	"cmp"
	"math"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// outside is the CPU usage (CPU-s/s) in the window outside any followed task: the
// machine's busy time minus the usage of the tasks. It is 0 if that is not known. Small
// negative values count as 0: the kernel may charge tasks for stolen time, and it
// counts busy time in ticks.
func (sm *sampler) outside() float64 {
	w := &sm.window
	if w.busy < 0 {
		return 0
	}
	used := 0.0
	for _, t := range sm.tasks.order {
		if !t.inner { // else it is counted with the task that contains it
			used += t.cpu
		}
	}
	if rest := w.busy - used; rest > 1e-6 {
		return rest
	}
	return 0 // or a rounding error
}

// addOutside adds this usage as a suspect, so that no task is blamed for it. It also
// writes it to the trace, as a row without a cost and with a name that no task has: a
// rule that is replayed on the trace needs it as the agent's rule does. If the signal's
// domain is not CPUs, the extras and the reach come from the signal's source.
func (sm *sampler) addOutside(iv *pipeline.Interval, sig sample.Signal, variant string) {
	w := &sm.window
	s := &w.sample
	*s = sample.Sample{TS: iv.At(), Machine: sm.machineName, Job: sample.JobName(detect.OutsideName), Task: detect.OutsideName, Platform: sm.Platform,
		Signal: sig.Name, Variant: variant, Class: sample.BestEffort, CPU: float32(w.outside), Cost: float32(math.NaN()), Coverage: 1}
	var reach sample.Set
	if !sig.Domain.OfCPUs() {
		s.Extras, reach = w.others.Extras, w.others.Reach
	}
	if !(sig.PressureOf(w.outside, &s.Extras, w.length) > 0) {
		return
	}
	sm.recorder.traceSample(s)
	m := pipeline.MeasurementOf(s)
	m.CPU, m.Reach = w.outside, reach
	iv.Add(&sm.outsideSubject, m)
}

// judge passes the interval of a source of tasks to the pipeline and the trace.
func (sm *sampler) judge(now, at sample.Millis, source *sourceState) {
	w, sig, variant := &sm.window, source.signal, source.info.Variant
	iv := sm.pipeline.Begin(sig, at, w.length)
	w.served.grow(w.counted)
	for i, t := range sm.tasks.order {
		c := &w.counted[i]
		cost, flags := math.NaN(), t.flags
		var names []sample.Served
		var keys []detect.Served
		if c.ok && t.counted && t.judges(sig.Name) {
			cost, flags = c.Cost, flags|c.Flags
			names, keys = w.served.name(sm.tasks.byKey, &sm.placement.groups, t, sig.Domain, c.Served)
			if math.IsNaN(c.Cost) {
				sm.stats.notCounted[sig.Name]++
			}
		}
		s := sm.sampled(t, sig.Name, cmp.Or(c.Variant, variant), at, cost, &c.Reading)
		s.Flags, s.Served = flags, names
		sm.recorder.record(s)
		reach := c.Reach
		if sig.Domain.OfCPUs() {
			reach = t.reach.in(sig.Domain)
		}
		sm.add(iv, t, s, cost, reach, keys)
	}
	sm.addOutside(iv, sig, variant)
	verdicts := sm.end(now, iv, sig.Name, 0)
	for i, t := range sm.tasks.order {
		r, v := iv.Reading(i), &verdicts[i]
		if v.Outlier && t.MayBeHelped() {
			t.placementInterval = 0 // it may have been moved to where it suffers
		}
		view := judged{signal: sig.Name, cost: r.Cost, limit: math.NaN(), outlier: v.Outlier, coverage: w.counted[i].Coverage, spec: r.Spec}
		if v.Judged {
			view.limit = v.Limit
		}
		if v.Sane && (r.Spec == nil || r.Spec.State == spec.Learning) {
			view.readyIn = float64(t.missing(sig.Name)) * sm.Config.Sampling.Period.Seconds()
		}
		t.judged = append(t.judged, view)
	}
}

// add adds the measurement in a task's sample, whose cost is not rounded, to an interval.
func (sm *sampler) add(iv *pipeline.Interval, t *task, s *sample.Sample, cost float64, reach sample.Set, served []detect.Served) {
	m := pipeline.MeasurementOf(s)
	m.CPU, m.Inner, m.Cost, m.HeldBy, m.Reach, m.Served = t.cpu, t.inner, cost, t.throttledBy, reach, served
	iv.Add(t.subject(sm.Platform, s), m)
}

// end ends an interval and counts the outliers among its measurements from the first on.
func (sm *sampler) end(now sample.Millis, iv *pipeline.Interval, sig sample.SignalName, first int) []detect.Verdict {
	verdicts := iv.End(now)
	sm.actor.carryOut(now)
	for _, v := range verdicts[first:] {
		if v.Outlier {
			sm.stats.outliers[sig]++
		}
	}
	return verdicts
}

// judgeMachine is judge for a source that measures the machine and not its tasks. Its
// stand-ins are the victims. Tasks are suspects, unless the antagonist can only be on
// another machine. No task is capped for a stand-in: its class is not one that may be
// helped.
func (sm *sampler) judgeMachine(now, at sample.Millis, source *sourceState) {
	w, sig, variant := &sm.window, source.signal, source.info.Variant
	var nothing counter.Reading
	iv := sm.pipeline.Begin(sig, at, w.length)
	if sig.Domain != sample.OtherVM {
		for _, t := range sm.tasks.order {
			s := sm.sampled(t, sig.Name, variant, at, math.NaN(), &nothing)
			sm.recorder.traceSample(s)
			sm.add(iv, t, s, math.NaN(), t.reach.in(sig.Domain), nil)
		}
		w.others = nothing
		sm.addOutside(iv, sig, variant)
	}
	first := iv.Len()
	source.machine.MachineReadings(func(name string, cpus sample.Set, c counter.Reading) {
		t := sm.tasks.pseudoTask(sig.Name, name)
		t.cpu = max(0, w.busy)
		s := sm.sampled(t, sig.Name, variant, at, c.Cost, &c)
		if math.IsNaN(c.Cost) {
			sm.stats.notCounted[sig.Name]++
		}
		sm.recorder.record(s)
		sm.add(iv, t, s, c.Cost, sm.placement.reaches.of(&sm.placement.topology, cpus).in(sig.Domain), nil)
		sm.overall = append(sm.overall, machineCost{sig.Name, name, incident.Value(c.Cost)})
	})
	sm.end(now, iv, sig.Name, first)
}
