package agent

import (
	"math"

	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
)

// overallCost is what a signal of the machine as a whole said last.
type overallCost struct {
	signal sample.SignalName
	name   string
	cost   plan.Value
}

// judgeOverall is judge for a source that measures the machine and no task: its
// stand-ins are the victims. Tasks are suspects, unless the antagonist can only be
// on another machine. Nobody is capped for a stand-in's sake: it is of no class
// that may be helped.
func (a *Agent) judgeOverall(now, at sample.Millis, sig sample.Signal, o counter.Overall, wall float64) {
	w := &a.window
	w.readings = w.readings[:0]
	if sig.Domain != sample.Elsewhere {
		for _, t := range a.roster.order {
			w.readings = append(w.readings, detect.Reading{Task: t.Task, Cost: math.NaN(), CPU: t.cpu, Pressure: t.cpu,
				Flags: t.flags, HeldBy: t.heldBy, Reach: t.reach.in(sig.Domain)})
		}
		if r, ok := a.outsideReading(sig); ok {
			w.readings = append(w.readings, r)
		}
	}
	first := len(w.readings)
	var tasks []*task
	var counts []counter.Reading
	o.Overall(func(name string, cpus sample.Set, c counter.Reading) {
		t := a.standIn(sig.Name, name)
		r := detect.Reading{Task: t.Task, Cost: c.Cost, CPU: max(0, w.busy.Seconds()/wall), OwnApart: true,
			Reach: a.reaches.of(&a.Topology, cpus).in(sig.Domain), Spec: a.lookup(a.specKey(t, sig.Name, o.Variant()), at)}
		if sig.Domain == sample.Elsewhere { // all of it is stolen time
			r.Flags, r.Stolen = sample.Stolen, 1
		}
		if math.IsNaN(c.Cost) {
			a.stats.notCounted[sig.Name]++
		}
		tasks, counts, w.readings = append(tasks, t), append(counts, c), append(w.readings, r)
	})
	verdicts := a.detector.Observe(sig, at, w.readings)
	a.carryOut(now, a.planner.Interval(now, sig.Name, at, w.readings, verdicts))
	for i, t := range tasks {
		r, v := &w.readings[first+i], &verdicts[first+i]
		a.learn(t, sig.Name, o.Variant(), at, r, v)
		if v.Outlier {
			a.stats.outliers[sig.Name]++
		}
		a.overall = append(a.overall, overallCost{sig.Name, string(t.Name), plan.Value(r.Cost)})
		a.record(t, &counts[i], sig.Name, o.Variant(), at, r)
	}
}

// standIn is what is judged in place of a task. It is no member of the roster,
// and its name is that of no task: those begin with "/".
func (a *Agent) standIn(sig sample.SignalName, name string) *task {
	key := string(sig) + name
	if t := a.standIns[key]; t != nil {
		return t
	}
	t := &task{Task: sample.Task{Name: sample.TaskName(name), Job: sample.JobName("(" + string(sig) + ")"), Class: sample.Batch, NeverCap: true,
		Key: sample.TaskKey{Hierarchy: sample.Unified, FirstSeen: sample.Millis(1 + len(a.standIns))}}}
	a.standIns[key] = t
	return t
}
