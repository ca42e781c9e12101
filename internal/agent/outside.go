package agent

import (
	"math"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
)

// outside is the CPU usage (CPU-s/s) in the window outside any followed task: the
// machine's busy time minus the usage of the tasks. It is 0 if that is not known. Small
// negative values count as 0: the kernel may charge tasks for stolen time, and it
// counts busy time in ticks.
func (sm *sampler) outside(wall float64) float64 {
	w := &sm.window
	if w.busy < 0 || wall <= 0 {
		return 0
	}
	used := 0.0
	for _, t := range sm.tasks.roster.order {
		if !t.inner { // else it is counted with the task that contains it
			used += t.cpu
		}
	}
	if rest := w.busy.Seconds()/wall - used; rest > 1e-6 {
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
	*s = sample.Sample{TS: iv.At(), Machine: sm.machineName, Job: sample.JobName(detect.OutsideName), Task: detect.OutsideName, Platform: sm.platform,
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
