package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// An agent that is killed while a task suffers, and restarted, detects that again in
// less than 2 minutes with the default times: 10 s out of each 60 s, three outliers. It
// has only the specs as of the last save.
func TestDetectsSoonAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		c := r.config
		if c.Sampling.Duration != 10*time.Second || c.Sampling.Period != time.Minute || c.Detect.Outliers != 3 || c.Tick != time.Second {
			t.Fatalf("these are not the default times: %+v, tick %s, %d outliers", c.Sampling, c.Tick, c.Detect.Outliers)
		}
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		r.learn()
		r.pass(c.Spec.Save)
		noisy.set(1.5)
		r.pass(90 * time.Second) // it has seen an outlier or two
		if got := r.incidents(); len(got) != 0 {
			t.Fatalf("%d incidents before the agent was killed", len(got))
		}
		left := filepath.Join(t.TempDir(), "left")
		if err := os.CopyFS(left, os.DirFS(c.StateDir)); err != nil {
			t.Fatal(err)
		}
		r.stop()

		again := newRig(t, r.machine, left)
		began := time.Now()
		again.start()
		defer again.stop()
		again.pass(2 * time.Minute)
		all := again.incidents()
		if len(all) != 1 || all[0].Victim.Name != "/web/1" {
			t.Fatalf("2 minutes after the restart: %+v", all)
		}
		took := all[0].Opened.Sub(sample.At(began))
		if took >= 2*time.Minute {
			t.Errorf("found after %s", took)
		}
		t.Logf("found %s after the restart", took)

		// From then on the windows are at their regular times.
		before := again.status().Intervals
		again.pass(10 * time.Minute)
		if got := again.status().Intervals - before; got != 10 {
			t.Errorf("%d windows in 10 minutes", got)
		}
	})
}

// Without specs the agent does not hurry.
func TestFirstStartDoesNotHurry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 0.5)
		r.start()
		defer r.stop()
		r.pass(2*time.Minute + 10*time.Second)
		if got := r.status().Intervals; got != 3 {
			t.Errorf("%d windows in 2:10, want 3", got)
		}
	})
}
