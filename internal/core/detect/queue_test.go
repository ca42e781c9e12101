package detect_test

import (
	"fmt"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// A tenant with a thousand tasks in trouble, of one job or, where no task may be capped for them, of as
// many jobs, keeps the analysis of a victim waiting for seconds, and not for a quarter of an hour.
func TestAttackAThousandAnomalies(t *testing.T) {
	for name, flood := range map[string]func(n int) sample.Task{
		"one job, helped": func(int) sample.Task { return sample.Task{Job: "flood", Class: sample.LatencySensitive} },
		"many jobs": func(n int) sample.Task {
			return sample.Task{Job: sample.JobName(fmt.Sprint("flood", n)), Class: sample.Batch}
		},
		"no jobs": func(int) sample.Task { return sample.Task{Class: sample.Batch} },
	} {
		params, err := detect.Paper(detect.EvidenceMethod)
		if err != nil {
			t.Fatal(err)
		}
		d := detect.New(params)
		sig, _ := sample.LookupSignal(sample.RunQ)
		normal := &spec.Spec{State: spec.Ready, Mean: 0.1, StdDev: 0.01}
		var readings []detect.Reading
		for n := range 1000 {
			task := flood(n)
			task.Key, task.Name = sample.TaskKey{Inode: uint64(n + 1)}, sample.TaskName(fmt.Sprint("/flood/", n))
			readings = append(readings, detect.Reading{Task: &task, CPU: 1, Cost: 2, Spec: normal})
		}
		victim := sample.Task{Key: sample.TaskKey{Inode: 5000}, Name: "/web", Job: "web", Class: sample.LatencySensitive}
		analysed := sample.Millis(0)
		for minute := range 30 {
			at := sample.Millis(minute+1) * 60_000
			now := readings
			if minute >= 10 { // when the others have waited for long
				now = append(now, detect.Reading{Task: &victim, CPU: 1, Cost: 2, Spec: normal})
			}
			d.Observe(sig, at, now)
			for s := range 60 {
				if f, ok := d.Next(at + sample.Millis(s)*1000); ok && f.Victim.Name == victim.Name && analysed == 0 {
					analysed = at + sample.Millis(s)*1000
				}
			}
		}
		const anomaly = 13 * 60_000 // its third outlier
		if wait := analysed - anomaly; analysed == 0 || wait > 2*60_000 {
			t.Errorf("%s: the victim waited %d s for its analysis", name, wait/1000)
		}
	}
}
