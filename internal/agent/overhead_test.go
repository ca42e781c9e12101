package agent

import (
	"strings"
	"testing"
	"time"
)

func TestTax(t *testing.T) {
	const µs = time.Microsecond
	for _, c := range []struct {
		what     string
		toll     time.Duration
		switches float64
		cpus     int
		duty     float64
		rested   bool
		share    float64
		rests    bool
	}{
		{"bare metal", 2 * µs, 20_000, 8, 1.0 / 6, false, 2e-6 * 20_000 / 6 / 8, false},
		{"a quiet guest", 150 * µs, 400, 2, 1.0 / 6, false, 0.005, false},
		{"a busy guest", 150 * µs, 4000, 2, 1.0 / 6, false, 0.05, true},
		{"all the time", 150 * µs, 400, 2, 1, false, 0.03, true},
		{"calmer, not calm", 150 * µs, 480, 2, 1.0 / 6, true, 0.006, true},
		{"calm again", 150 * µs, 320, 2, 1.0 / 6, true, 0.004, false},
		{"not measured", 0, 1e6, 2, 1, false, 0, false},
	} {
		x := overhead{paused: c.rested}.next(c.toll, c.switches, c.cpus, c.duty, 0.01)
		if d := x.share - c.share; d > 1e-9 || d < -1e-9 || x.paused != c.rests || x.known != (c.toll > 0) {
			t.Errorf("%s: %+v, want a share of %v, resting %v", c.what, x, c.share, c.rests)
		}
		if x := (overhead{paused: c.rested}).next(c.toll, c.switches, c.cpus, c.duty, 0); x.paused {
			t.Errorf("%s: paused without a limit", c.what)
		}
	}
}

// newRigOfTwo is a rig on a machine of two CPUs, of which the cost of switches is a share.
func newRigOfTwo(t *testing.T, settings ...string) *rig {
	t.Helper()
	root := t.TempDir()
	plug(t, root, "0-1", 0, 1)
	r := newRig(t, newMachine(t), t.TempDir(), settings...)
	r.sysfs = openHost(t, root)
	return r
}

// If windows follow each other without a pause, counters stay on in between, except
// those of a paused signal.
func TestWhatRestsIsSwitchedOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRigOfTwo(t, "sampling.period=10s")
		r.add("/batch/job-1", 0.5)
		r.toll, r.switches = 150*time.Microsecond, 90
		r.start()
		defer r.stop()
		r.pass(25 * time.Second)
		if !r.source.on {
			t.Fatal("nothing is counted")
		}
		r.switches = 9000
		r.pass(20 * time.Second)
		if r.source.on || r.source.open {
			t.Error("it is counted while it is paused")
		}
		r.switches = 50
		r.pass(30 * time.Second)
		if !r.source.on {
			t.Error("it does not come back")
		}
	})
}

// A signal is paused in the windows in which it would cost the machine too much, this
// is reported, and it resumes. What does not depend on it continues.
func TestADearSignalRests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRigOfTwo(t)
		r.add("/batch/job-1", 0.5).cost = func() float64 { return 1 }
		r.toll, r.switches = 150*time.Microsecond, 300 // 0.4 % of 2 CPUs, 10 s in 60 s
		r.start()
		defer r.stop()
		counted := func() int { return len(r.samples) }
		r.pass(3*time.Minute - 30*time.Second)
		if counted() != 3 {
			t.Fatalf("%d samples of three windows", counted())
		}
		r.switches = 9000
		r.pass(time.Minute) // this window measures it; from the next on it is paused
		before := counted()
		r.pass(5 * time.Minute)
		if got := counted() - before; got != 0 {
			t.Errorf("%d samples while the signal was to rest", got)
		}
		_, series := r.scrape()
		if series[`quell_signal_resting{signal="cpi"}`] != "1" || !strings.HasPrefix(series[`quell_signal_tax_ratio{signal="cpi"}`], "0.11") {
			t.Errorf("resting %q at %q", series[`quell_signal_resting{signal="cpi"}`], series[`quell_signal_tax_ratio{signal="cpi"}`])
		}
		if d := strings.Join(r.status().Degraded, "\n"); !strings.Contains(d, "cpi is paused: with 150µs more for each context switch") || !strings.Contains(d, "(1 %)") {
			t.Errorf("degraded: %s", d)
		}
		if n := strings.Count(r.log.String(), "cpi is paused"); n != 1 {
			t.Errorf("said %d times", n)
		}
		if got := r.task("/batch/job-1").CPU; got < 0.49 || got > 0.51 {
			t.Errorf("its usage is %v", got)
		}
		if c := r.status().Signals[0]; c.Coverage > 0.5 || c.Counted != 0 {
			t.Errorf("said to be counted: %+v", c)
		}
		r.switches = 300
		r.pass(2 * time.Minute)
		before = counted()
		r.pass(3 * time.Minute)
		if got := counted() - before; got != 3 || len(r.status().Degraded) != 0 {
			t.Errorf("%d samples of three windows once it was calm again; degraded %q", got, r.status().Degraded)
		}
	})
}

// The rate of switches since the machine was booted decides on the first window, and on no other.
func TestADearSignalRestsFromTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRigOfTwo(t)
		r.add("/batch/job-1", 0.5).cost = func() float64 { return 1 }
		// 0.75 % of 2 CPUs, 10 s in 60 s; 3 % since it was booted, since its CPUs have no idle time in /proc/stat.
		r.toll, r.switches = 150*time.Microsecond, 600
		<-time.After(time.Hour)
		r.start()
		defer r.stop()
		r.pass(30 * time.Second)
		if n := r.status().Intervals; len(r.samples) != 0 || n != 1 {
			t.Errorf("%d samples of %d windows, want none of one", len(r.samples), n)
		}
		r.pass(time.Minute)
		if len(r.samples) != 1 {
			t.Errorf("%d samples of the second window, want one", len(r.samples))
		}
	})
}
