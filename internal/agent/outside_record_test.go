package agent

import (
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
)

// Usage outside any task is in the trace as the suspect that it is: usage without a
// cost, in every interval.
func TestWhatRunsOutsideAnyTaskIsInTheTrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/host/daemon", 0.05)
		r.add("/batch/loud-1", 1.2)
		r.start()
		defer r.stop()
		r.pass(4 * time.Minute)
		intervals, outside := map[int64]bool{}, 0
		for _, s := range r.samples {
			intervals[int64(s.TS)] = true
			if s.Task != detect.OutsideName {
				continue
			}
			outside++
			if math.Abs(float64(s.CPU)-0.05) > 1e-6 || !math.IsNaN(float64(s.Cost)) || s.Machine == "" {
				t.Errorf("%+v", s)
			}
		}
		if outside == 0 || outside != len(intervals) {
			t.Errorf("%d rows of it in %d intervals", outside, len(intervals))
		}
	})
}
