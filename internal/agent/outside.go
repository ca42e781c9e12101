package agent

import (
	"math"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/pipeline"
	"github.com/quell-dev/quell/internal/sample"
)

// outside works out how much CPU (CPU-s/s) was used in the window outside any
// task that is followed: what the machine was busy less what the tasks used. It
// is 0 where that is not known. The kernel may charge tasks for stolen time and
// counts busy time in ticks, so a little less than nothing is nothing.
func (a *Agent) outside(wall float64) float64 {
	w := &a.window
	if w.busy < 0 || wall <= 0 {
		return 0
	}
	used := 0.0
	for _, t := range a.roster.order {
		if !t.inner { // else it is counted with the task that contains it
			used += t.cpu
		}
	}
	if rest := w.busy.Seconds()/wall - used; rest > 1e-6 {
		return rest
	}
	return 0 // or what rounding left
}

// addOutside makes a suspect of it, so that no task is blamed for it, and writes it
// to the trace, where a rule that is tried on that needs it as the agent's did: a row
// without a cost under the name that no task has. What is not a matter of CPUs the
// signal's source must know.
func (a *Agent) addOutside(iv *pipeline.Interval, sig sample.Signal, variant string) {
	w := &a.window
	s := &w.sample
	*s = sample.Sample{TS: iv.At(), Machine: a.machine, Job: sample.JobName(detect.OutsideName), Task: detect.OutsideName, Platform: a.Platform,
		Signal: sig.Name, Variant: variant, Class: sample.BestEffort, CPU: float32(w.outside), Cost: float32(math.NaN()), Coverage: 1}
	var reach sample.Set
	if !sig.Domain.OfCPUs() {
		s.Extras, reach = w.others.Extras, w.others.Reach
	}
	if !(sig.PressureOf(w.outside, &s.Extras, w.length) > 0) {
		return
	}
	a.recordHere(s)
	m := pipeline.Of(s)
	m.CPU, m.Reach = w.outside, reach
	iv.Add(&a.outsideSubject, m)
}
