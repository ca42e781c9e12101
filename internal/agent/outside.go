package agent

import (
	"math"
	"path"

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
	type place struct {
		hierarchy sample.Hierarchy
		path      string
	}
	follows := make(map[place]bool, len(w.order))
	for _, t := range w.order {
		follows[place{t.Key.Hierarchy, string(t.Name)}] = true
	}
	used := 0.0
next:
	for _, t := range w.order {
		for p := path.Dir(string(t.Name)); p != "/" && p != "."; p = path.Dir(p) {
			if follows[place{t.Key.Hierarchy, p}] {
				continue next // counted with the task that contains it
			}
		}
		used += t.cpu
	}
	return max(0, w.busy.Seconds()/wall-used)
}

// outsideReading makes a suspect of it, so that nobody is blamed for it.
func outsideReading(cpu float64) detect.Reading {
	return detect.Reading{Task: detect.Outside(), Cost: math.NaN(), CPU: cpu, Pressure: cpu}
}
