package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// sweeper is an agent over n tasks, every other of them busy, whose windows the caller
// opens and closes.
func sweeper(t testing.TB, n int) (r *rig, sweep func()) {
	r = newRig(t, newMachine(t), t.TempDir(), "sampling.period=10s")
	for i := range n {
		g := r.add(fmt.Sprintf("/batch/job%d-%d", i/10, i), 0.3*float64(i%2))
		g.cost = func() float64 { return 1 + float64(i%7)/100 }
	}
	r.start()
	r.stop() // the loop; from here on the caller takes its place
	a := r.agent
	a.Record = nil // writing a trace is optional
	a.recorder.disk, _ = openDisk(r.config)
	t.Cleanup(func() { a.recorder.disk.close() })
	*a.tasks = *newTaskSet()
	a.sampler.window, r.source.open, r.source.targets = window{}, false, map[sample.TaskKey]*followed{}
	r.fresh = true
	a.discovery.updateTasks(time.Now(), false, false)
	a.sampler.openWindow(time.Now())
	return r, func() {
		<-time.After(10 * time.Second)
		now := time.Now()
		a.sampler.closeWindow(now)
		a.actor.analyse()
		a.sampler.openWindow(now)
	}
}

// The memory that a window allocates in a running agent does not depend on the number
// of tasks it follows.
func TestASweepAllocatesNothingForATask(t *testing.T) {
	bubble(t, func(t *testing.T) {
		allocs := func(n int) float64 {
			r, sweep := sweeper(t, n)
			for range 400 { // the history covers an hour
				sweep()
			}
			if got := r.agent.stats.samples[sample.CPI]; got != uint64(400*n) {
				t.Fatalf("%d samples", got)
			}
			return testing.AllocsPerRun(60, sweep)
		}
		few, many := allocs(10), allocs(90)
		t.Logf("%v allocations a sweep of 10 tasks, %v of 90", few, many)
		if many > few {
			t.Errorf("%v allocations a sweep of 10 tasks, %v of 90", few, many)
		}
	})
}
