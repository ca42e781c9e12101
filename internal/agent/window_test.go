package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A task that is older than the agent is not charged with its past usage.
func TestUsageIsOfTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/batch/job-1", 0.5)
		g.used = 1000 * time.Hour
		late := r.add("/batch/job-2", 0.5)
		late.used, late.fails = 1000*time.Hour, errors.New("kernel reports no CPU time")
		r.start()
		defer r.stop()
		r.pass(4 * time.Second)
		if v := r.task("/batch/job-2"); v.Note != "kernel reports no CPU time" {
			t.Errorf("note %q", v.Note)
		}
		late.fails = nil
		r.pass(6 * time.Second)
		if v := r.task("/batch/job-1"); v.CPU < 0.49 || v.CPU > 0.51 {
			t.Errorf("usage %g, want 0.5", v.CPU)
		}
		if v := r.task("/batch/job-2"); v.CPU > 0.51 || v.Note != "" {
			t.Errorf("usage %g with note %q, want 0.5 at most and none", v.CPU, v.Note)
		}
	})
}

// Reading costs, so usage is read at a window's ends, in its middle if the task uses
// any CPU, and never between windows.
func TestHowOftenUsageIsRead(t *testing.T) {
	for _, c := range []struct {
		name, period string
		load         float64
		want         int // in a minute
	}{
		{"busy", "60s", 0.5, 3},
		{"idle", "60s", 0, 2},
		{"busy, no pause", "10s", 0.5, 18},
		{"idle, no pause", "10s", 0, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newMachine(t), t.TempDir(), "sampling.period="+c.period)
				g := r.add("/batch/job-1", c.load)
				r.start()
				defer r.stop()
				r.pass(32 * time.Second)
				before := g.reads
				r.pass(time.Minute)
				if n := g.reads - before; n != c.want {
					t.Errorf("%d readings in a minute, want %d", n, c.want)
				}
			})
		})
	}
}

// Opening a window takes seconds on a slow machine. For an idle task that wakes
// meanwhile, only the usage within the window counts.
func TestUsageOfTheWindowAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "sampling.period=10s")
		g := r.add("/batch/job-1", 0)
		r.start()
		defer r.stop()
		r.pass(25 * time.Second)
		slow := true
		r.source.starting = func() {
			if slow {
				slow = false
				g.set(0.5)
				<-time.After(8 * time.Second)
			}
		}
		r.pass(40 * time.Second)
		seen := 0.0
		for _, s := range r.samples {
			seen = max(seen, float64(s.CPU))
		}
		if slow || seen < 0.49 || seen > 0.51 {
			t.Errorf("used %g CPU-s/s at most, want 0.5", seen)
		}
	})
}

func TestPressureIsOfTheWindow(t *testing.T) {
	for _, period := range []string{"60s", "10s"} { // with a pause between windows, and without
		t.Run(period, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newMachine(t), t.TempDir(), "sampling.period="+period)
				g, without := r.add("/batch/job-1", 0.5), r.add("/left/idle-1", 0.5)
				without.stall = -1
				g.stall = time.Hour
				r.start()
				defer r.stop()
				r.pass(5 * time.Second)
				g.stall += 4 * time.Second
				r.pass(8 * time.Second)
				check := func(want string) {
					t.Helper()
					_, got := r.scrape()
					if v := got[`quell_job_cpu_stall{job="job"}`]; v != want {
						t.Errorf("a share of %q, want %s", v, want)
					}
					for series := range got {
						if strings.HasPrefix(series, "quell_job_cpu_stall") && !strings.Contains(series, `"job"`) {
							t.Errorf("%s is not known", series)
						}
					}
				}
				check("0.4")
				g.stall += 2 * time.Second // in the next window only if there is no pause
				r.pass(12 * time.Second)
				if period == "10s" {
					check("0.2")
				} else {
					check("0.4")
				}
				r.pass(55 * time.Second)
				check("0")
			})
		})
	}
}

// Late, early or missing ticks do not move the windows: 10 s out of each 60 s, counted
// from the first.
func TestWindowsWithJitteredTicks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/batch/job-1", 1)
		g.cost = func() float64 { return 1 }
		r.start() // for its parts; the test runs the ticks
		r.stop()
		a := r.agent
		r.fresh = true
		a.recorder.disk, _ = openDisk(r.config)
		*a.tasks = *newTaskSet()
		a.sampler.window, r.source.open, r.source.targets = window{}, false, map[sample.TaskKey]*followed{}

		begin := time.Now()
		var opened, closed []time.Duration
		lag := []int{0, 130, -420, 260, 499, -300, 380}
		for tick := range 600 {
			due := begin.Add(time.Duration(tick)*time.Second + time.Duration(lag[tick%len(lag)])*time.Millisecond)
			<-time.After(time.Until(due))
			before := a.sampler.window.open
			a.tick(time.Now())
			switch {
			case !before && a.sampler.window.open:
				opened = append(opened, time.Since(begin))
			case before && !a.sampler.window.open:
				closed = append(closed, time.Since(begin))
			}
		}
		if len(opened) != 10 || len(closed) != 10 {
			t.Fatalf("opened %v, closed %v", opened, closed)
		}
		var sum time.Duration
		for i := range opened {
			want := time.Duration(i) * time.Minute
			if off := opened[i] - want; off < -500*time.Millisecond || off > 500*time.Millisecond {
				t.Errorf("window %d opened at %v", i, opened[i])
			}
			long := closed[i] - opened[i]
			if sum += long; long < 9*time.Second || long > 11*time.Second {
				t.Errorf("window %d was open for %v", i, long)
			}
		}
		if mean := sum / 10; mean < 9800*time.Millisecond || mean > 10200*time.Millisecond {
			t.Errorf("windows were open for %v in the mean", mean)
		}
		for _, t := range a.tasks.byKey {
			t.cgroup.Close()
		}
		a.recorder.disk.close()
	})
}

// A stall of several periods costs those windows: one is opened at once for the newest
// of them, and the next when it is due.
func TestWindowsAfterAStall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.start()
		defer r.stop()
		r.pass(20 * time.Second)
		// A request blocks the loop for 2½ minutes.
		if err := r.agent.ask(t.Context(), func() { <-time.After(150 * time.Second) }); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		before := r.status().Intervals
		r.pass(9*time.Second + 59*time.Second) // up to 4:00, where the next one opens
		if got := r.status().Intervals - before; got != 2 {
			t.Errorf("%d windows until 4:00, want the one opened at 2:50 and that of 3:00", got)
		}
		r.pass(2 * time.Minute)
		if got := r.status().Intervals - before; got != 4 {
			t.Errorf("%d windows until 6:00, want two more", got)
		}
	})
}

// A cap in any part of a window marks its sample.
func TestCapsInPartOfAWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1)
		r.start()
		defer r.stop()
		capIt := func() { r.do(capping(command.Target{Task: "job-1"}, 0.5, "1h", "r")) }
		uncap := func() { r.do(uncapping(command.Target{Task: "job-1"}, "r")) }
		r.pass(3 * time.Second)
		capIt() // in the first window
		r.pass(3 * time.Second)
		uncap()
		r.pass(30 * time.Second)
		capIt() // from before the second
		r.pass(30 * time.Second)
		uncap()
		r.pass(30 * time.Second)
		capIt() // between windows
		r.pass(10 * time.Second)
		uncap()
		r.pass(30 * time.Second)
		var got []string
		for _, s := range r.samples {
			got = append(got, s.Flags.String())
		}
		if strings.Join(got, ",") != "capped,capped," {
			t.Errorf("flags %q, want the third alone without", got)
		}
	})
}

// A rule may name the signals that judge its tasks; others do not judge them.
func TestRuleNamesSignals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.config.Rules[2].Signals = []string{"runq"}
		r.add("/batch/job-1", 1).cost = func() float64 { return 1 }
		r.add("/left/over", 1).cost = func() float64 { return 1 }
		r.start()
		defer r.stop()
		r.pass(10 * time.Second)
		if c := r.task("/batch/job-1").Costs[0].Cost; c == c {
			t.Errorf("judged by a signal that was not named: %v", c)
		}
		if c := r.task("/left/over").Costs[0].Cost; c != 1 {
			t.Errorf("the other's cost is %v", c)
		}
	})
}

// Stolen time is computed from the machine's CPU times, and marks every sample.
func TestStolenTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1)
		r.start()
		defer r.stop()
		r.pass(5 * time.Second)
		r.stolen = time.Second // of 11 s
		r.pass(time.Minute)
		if got := r.samples[0].Flags; got != sample.Stolen {
			t.Errorf("flags %v", got)
		}
		r.pass(time.Minute)
		if got := r.samples[1].Flags; got != 0 {
			t.Errorf("flags %v of the next window", got)
		}
	})
}

// The CPUs of an idle task are not needed, and reading them is expensive.
func TestWhenATaskIsLookedAtAgain(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		cpus        sample.Set
		cpu         float64
		calm, since time.Duration
		want        bool
	}{
		{sample.SetOf(0), 0.5, 0, 59 * time.Second, false},
		{sample.SetOf(0), 0.5, 0, time.Minute, true},
		{sample.SetOf(0), 0.5, 4 * time.Minute, 3 * time.Minute, false},
		{sample.SetOf(0), 0.5, 4 * time.Minute, 4 * time.Minute, true},
		{sample.SetOf(0), 0, 0, 5 * time.Minute, false},
		{sample.SetOf(0), 0, 0, 10 * time.Minute, true},
		{sample.SetOf(0), 0.01, 0, time.Minute, true},
		{nil, 0, 0, time.Second, true}, // it had no processes yet
	} {
		x := &task{reach: reach{cpus: c.cpus}, cpu: c.cpu, placementInterval: c.calm, placementRead: now.Add(-c.since)}
		if got := x.dueLook(now); got != c.want {
			t.Errorf("%v of CPU, %v later, on CPUs %v: %v, want %v", c.cpu, c.since, c.cpus, got, c.want)
		}
	}
	// Of many that came together each has its own time, not much sooner.
	due := 0
	for inode := range uint64(160) {
		x := &task{Task: sample.Task{Key: sample.TaskKey{Inode: inode}}, reach: reach{cpus: sample.SetOf(0)}, placementRead: now.Add(-9 * time.Minute)}
		if x.dueLook(now) {
			due++
		}
	}
	if due < 60 || due > 100 {
		t.Errorf("%d of 160 idle tasks are due a tenth before their time", due)
	}
}

// A task that does not move is looked at less and less often; when any task is found to
// have moved, all are looked at soon.
func TestLooksBecomeRare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		all := []*guest{r.add("/batch/job-1", 0.5), r.add("/batch/job-2", 0.5), r.add("/batch/job-3", 0)}
		r.start()
		defer r.stop()
		looks := func(d time.Duration) (n [3]int) {
			for i, g := range all {
				n[i] = -g.looks
			}
			r.pass(d)
			for i, g := range all {
				n[i] += g.looks
			}
			return n
		}
		r.pass(30 * time.Minute)
		calm := looks(time.Hour)
		for i, n := range calm {
			if n < 5 || n > 8 {
				t.Errorf("task %d was looked at %d times in an hour", i, n)
			}
		}
		all[0].moves = "/elsewhere"
		r.pass(12 * time.Minute) // until one of the tasks was looked at
		if n := looks(10 * time.Minute); n[1] < 2 {
			t.Errorf("after another task moved, a busy one was looked at %d times in 10 minutes", n[1])
		}
		if p := r.agent.tasks.order[0].places.CPU; p != "/elsewhere" {
			t.Errorf("the task is thought to be in %s", p)
		}
	})
}

// A task that suffers may have been moved to where it does: its place is read again soon.
func TestATaskThatSuffersIsLookedAtSoon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.05)
		victim := r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		r.pass(30 * time.Minute) // looks become rare
		noisy.set(1.5)
		before := victim.looks
		r.pass(4 * time.Minute)
		if n := victim.looks - before; n < 2 {
			t.Errorf("it was looked at %d times in four windows", n)
		}
	})
}
