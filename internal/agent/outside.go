package agent

import (
	"math"

	"github.com/quell-dev/quell/internal/detect"
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

// outsideReading makes a suspect of it, so that nobody is blamed for it.
func outsideReading(cpu float64) detect.Reading {
	return detect.Reading{Task: detect.Outside(), Cost: math.NaN(), CPU: cpu, Pressure: cpu}
}
