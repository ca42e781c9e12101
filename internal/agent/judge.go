package agent

import (
	"cmp"
	"math"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// judge passes one signal's interval to the pipeline and the trace.
func (sm *sampler) judge(now, at sample.Millis, sig sample.Signal, variant string) {
	w := &sm.window
	iv := sm.pipeline.Begin(sig, at, w.length)
	w.served.grow(w.counted)
	for i, t := range sm.tasks.roster.order {
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
		m := t.measurement(s, cost)
		m.Served = keys
		if m.Reach = c.Reach; sig.Domain.OfCPUs() {
			m.Reach = t.reach.in(sig.Domain)
		}
		iv.Add(t.subject(sm.platform, s), m)
	}
	sm.addOutside(iv, sig, variant)
	verdicts := iv.End(now)
	sm.actor.carryOut(now)
	for i, t := range sm.tasks.roster.order {
		r, v := iv.Reading(i), &verdicts[i]
		view := api.SignalView{Signal: sig.Name, Cost: incident.Value(r.Cost), Limit: incident.Value(math.NaN()), Outlier: v.Outlier,
			Coverage: w.counted[i].Coverage}
		if r.Spec != nil {
			view.Spec = *r.Spec
		}
		if v.Judged {
			view.Limit = incident.Value(v.Limit)
		}
		if v.Outlier {
			sm.stats.outliers[sig.Name]++
		}
		t.views = append(t.views, view)
	}
}

// judgeMachine is judge for a source that measures the machine and not its tasks. Its
// stand-ins are the victims. Tasks are suspects, unless the antagonist can only be on
// another machine. No task is capped for a stand-in: its class is not one that may be
// helped.
func (sm *sampler) judgeMachine(now, at sample.Millis, sig sample.Signal, variant string, o counter.MachineSource) {
	w := &sm.window
	var nothing counter.Reading
	iv := sm.pipeline.Begin(sig, at, w.length)
	if sig.Domain != sample.OtherVM {
		for _, t := range sm.tasks.roster.order {
			s := sm.sampled(t, sig.Name, variant, at, math.NaN(), &nothing)
			sm.recorder.traceSample(s)
			m := t.measurement(s, math.NaN())
			m.Reach = t.reach.in(sig.Domain)
			iv.Add(t.subject(sm.platform, s), m)
		}
		w.others = nothing
		sm.addOutside(iv, sig, variant)
	}
	first := iv.Len()
	o.MachineReadings(func(name string, cpus sample.Set, c counter.Reading) {
		t := sm.tasks.pseudoTask(sig.Name, name)
		t.cpu = max(0, w.busy.Seconds()/w.length.Seconds())
		s := sm.sampled(t, sig.Name, variant, at, c.Cost, &c)
		if math.IsNaN(c.Cost) {
			sm.stats.notCounted[sig.Name]++
		}
		sm.recorder.record(s)
		m := t.measurement(s, c.Cost)
		m.Reach = sm.placement.reaches.of(&sm.placement.topology, cpus).in(sig.Domain)
		iv.Add(t.subject(sm.platform, s), m)
		sm.overall = append(sm.overall, machineCost{sig.Name, name, incident.Value(c.Cost)})
	})
	verdicts := iv.End(now)
	sm.actor.carryOut(now)
	for _, v := range verdicts[first:] {
		if v.Outlier {
			sm.stats.outliers[sig.Name]++
		}
	}
}
