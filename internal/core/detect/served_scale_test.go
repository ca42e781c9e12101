package detect_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Thousands of tasks that were served while a victim waited, as many as the kernel's map has room for, take
// an analysis a time that is linear in their number.
func TestAttackThousandsWereServed(t *testing.T) {
	sig, _ := sample.LookupSignal(sample.RunQ)
	took := func(n int) time.Duration {
		params, err := detect.Paper(detect.EvidenceMethod)
		if err != nil {
			t.Fatal(err)
		}
		d := detect.New(params)
		normal := &spec.Spec{State: spec.Ready, Mean: 0.1, StdDev: 0.01}
		tasks := make([]sample.Task, n+1)
		for i := range tasks {
			tasks[i] = sample.Task{Key: sample.TaskKey{Inode: uint64(i + 1)}, Name: sample.TaskName(fmt.Sprint("/task/", i)), Class: sample.LatencySensitive}
		}
		var served []detect.Served
		for i := range n {
			served = append(served, detect.Served{By: tasks[i+1].Key, Time: 1 / float64(n), Fair: 0.01})
		}
		fastest := time.Hour
		for minute := range 8 {
			at := sample.Millis(minute+1) * 60_000
			readings := []detect.Reading{{Task: &tasks[0], CPU: 1, Cost: 1, Spec: normal, Reach: sample.SetOf(0), Served: served, Waited: 1, Wanted: 2, Demand: 1, SelfKnown: true}}
			for i := range n {
				readings = append(readings, detect.Reading{Task: &tasks[i+1], CPU: 0.1, Pressure: 0.1, Reach: sample.SetOf(1)})
			}
			d.Observe(sig, at, readings)
			began := time.Now()
			if f, ok := d.Next(at); ok {
				fastest = min(fastest, time.Since(began))
				if f.Victim.Key != tasks[0].Key {
					t.Fatal(f.Victim)
				}
			}
		}
		return fastest
	}
	few, many := took(500), took(8000)
	if many > 80*few {
		t.Errorf("an analysis takes %s with 500 tasks, %s with 16 times as many", few, many)
	}
}
