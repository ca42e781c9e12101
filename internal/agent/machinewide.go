package agent

import (
	"math"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// machineCost is the newest cost of a machine-wide signal.
type machineCost struct {
	signal sample.SignalName
	name   string
	cost   incident.Value
}

// judgeMachine is judge for a source that measures the machine and not its tasks. Its
// stand-ins are the victims. Tasks are suspects, unless the antagonist can only be on
// another machine. No task is capped for a stand-in: its class is not one that may be
// helped.
func (a *Agent) judgeMachine(now, at sample.Millis, sig sample.Signal, variant string, o counter.MachineSource) {
	w := &a.window
	var nothing counter.Reading
	iv := a.pipeline.Begin(sig, at, w.length)
	if sig.Domain != sample.OtherVM {
		for _, t := range a.roster.order {
			s := a.sampled(t, sig.Name, variant, at, math.NaN(), &nothing)
			a.traceSample(s)
			m := t.measurement(s, math.NaN())
			m.Reach = t.reach.in(sig.Domain)
			iv.Add(t.subject(a.Platform, s), m)
		}
		w.others = nothing
		a.addOutside(iv, sig, variant)
	}
	first := iv.Len()
	o.MachineReadings(func(name string, cpus sample.Set, c counter.Reading) {
		t := a.pseudoTask(sig.Name, name)
		t.cpu = max(0, w.busy.Seconds()/w.length.Seconds())
		s := a.sampled(t, sig.Name, variant, at, c.Cost, &c)
		if math.IsNaN(c.Cost) {
			a.stats.notCounted[sig.Name]++
		}
		a.record(s)
		m := t.measurement(s, c.Cost)
		m.Reach = a.reaches.of(&a.Topology, cpus).in(sig.Domain)
		iv.Add(t.subject(a.Platform, s), m)
		a.overall = append(a.overall, machineCost{sig.Name, name, incident.Value(c.Cost)})
	})
	verdicts := iv.End(now)
	a.carryOut(now)
	for _, v := range verdicts[first:] {
		if v.Outlier {
			a.stats.outliers[sig.Name]++
		}
	}
}

// pseudoTask returns what is judged in place of a task. It is not in the roster, and its
// name cannot be a task's: those begin with "/".
func (a *Agent) pseudoTask(sig sample.SignalName, name string) *task {
	key := string(sig) + name
	if t := a.standIns[key]; t != nil {
		return t
	}
	t := &task{Task: sample.Task{Name: sample.TaskName(name), Job: sample.JobName("(" + string(sig) + ")"), Class: sample.Batch, NeverCap: true,
		Key: sample.TaskKey{Hierarchy: sample.Unified, FirstSeen: sample.Millis(1 + len(a.standIns))}}}
	a.standIns[key] = t
	return t
}
