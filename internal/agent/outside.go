package agent

import (
	"math"

	"github.com/quell-dev/quell/internal/detect"
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
	return max(0, w.busy.Seconds()/wall-used)
}

// outsideReading makes a suspect of it, so that nobody is blamed for it. What
// is not a matter of CPUs the signal's source must know.
func (a *Agent) outsideReading(sig sample.Signal) (detect.Reading, bool) {
	r := detect.Reading{Task: detect.Outside(), Cost: math.NaN(), CPU: a.window.outside, Pressure: a.window.outside}
	if !sig.Domain.OfCPUs() {
		r.Pressure, r.Reach = a.window.others.Pressure, a.window.others.Reach
	}
	return r, r.Pressure > 0
}

// recordOutside writes it to the trace, where a rule that is tried on that needs
// it as the agent's did: a row without a cost under the name that no task has.
// The server, which has specs of tasks, is not told. What is not a matter of
// CPUs has no row: a sample has no place for that pressure but the signal's extras.
func (a *Agent) recordOutside(sig sample.Signal, variant string, at sample.Millis, r *detect.Reading) {
	if a.Record == nil || !sig.Domain.OfCPUs() {
		return
	}
	s := sample.Sample{TS: at, Machine: a.machine, Job: sample.JobName(detect.OutsideName), Task: detect.OutsideName, Platform: a.Platform,
		Signal: sig.Name, Variant: variant, Class: sample.BestEffort, CPU: float32(r.CPU), Cost: float32(math.NaN()), Coverage: 1}
	a.degrade("recording samples", a.Record(&s))
}
