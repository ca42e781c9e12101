package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// crowded is a rig with n batch tasks and two latency-sensitive ones, and seats for
// some of them; others is how many other descriptors the process has open.
func crowded(t *testing.T, n, seats int, others *int) *rig {
	t.Helper()
	r := newRig(t, newMachine(t), t.TempDir())
	for i := range n {
		r.add(fmt.Sprintf("/batch/job-%d", i), 0.5).cost = func() float64 { return 1 }
	}
	for i := range 2 {
		r.add(fmt.Sprintf("/web/%d", i), 0.5).cost = func() float64 { return 1 }
	}
	r.source.info.WindowFDs, r.source.info.IdleFDs = 6, 6
	limit := 1600
	*others = limit - reserve(limit) - 6*seats
	r.descriptors = func() (int, int, error) {
		open := *others
		for _, g := range r.guests {
			if g.cgroup != nil {
				open += g.cgroup.OpenFiles()
			}
		}
		return open + 6*len(r.source.targets), limit, nil
	}
	return r
}

// If the descriptors do not suffice the tasks take turns: never more than fit, every
// task within the stated bound, the latency-sensitive ones in every window, and the
// shortage is reported.
func TestTasksTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var others int
		r := crowded(t, 30, 8, &others)
		r.start()
		defer r.stop()
		most := 0
		for range 60 {
			r.pass(30 * time.Second)
			most = max(most, len(r.source.targets))
			r.pass(30 * time.Second)
		}
		if most != 8 {
			t.Errorf("%d tasks were counted at once, want 8", most)
		}
		last, wait, n := map[string]int{}, 0, map[string]int{}
		for _, s := range r.samples {
			if w := int(s.TS.Time().Sub(r.samples[0].TS.Time()) / time.Minute); s.Cost == s.Cost {
				wait = max(wait, w-last[string(s.Task)])
				last[string(s.Task)] = w
				n[string(s.Task)]++
			}
		}
		st := r.status().Signals[0]
		if len(n) != 32 || st.Tasks != 32 || st.Counted != 8 || wait > st.Within || st.Within == 0 {
			t.Errorf("%d tasks were counted, the longest wait was %d windows, status %+v", len(n), wait, st)
		}
		if n["/web/0"] != 60 || n["/web/1"] != 60 {
			t.Errorf("the latency-sensitive ones were counted in %d and %d windows of 60", n["/web/0"], n["/web/1"])
		}
		if want := (8*60 + 0.0) / (32 * 60); st.Coverage < want-0.01 || st.Coverage > want+0.01 {
			t.Errorf("coverage %g, want %g", st.Coverage, want)
		}
		if note := r.task("/batch/job-3").Note; !strings.HasPrefix(note, "cpi: counted in ") || !strings.HasSuffix(note, " of 61 windows") {
			t.Errorf("note %q", note)
		}
		if got := strings.Join(r.status().Degraded, "\n"); !strings.Contains(got, "tasks take turns, cpi 8 of 32 at once; raise the limit (LimitNOFILE) to ") {
			t.Errorf("degraded: %s", got)
		}
		for _, g := range r.guests {
			if g.cgroup.OpenFiles() != 0 {
				t.Fatalf("%s keeps %d files although counters need their room", g.path, g.cgroup.OpenFiles())
			}
		}
		// There is room again: every task is counted and keeps its files open.
		others = 0
		r.pass(time.Minute)
		if st := r.status().Signals[0]; st.Counted != 32 || st.Within != 1 || len(r.status().Degraded) != 0 {
			t.Errorf("with room for all: %+v, degraded %q", st, r.status().Degraded)
		}
		if g := r.guests[0]; g.cgroup.OpenFiles() != keptFiles {
			t.Errorf("%d files are kept", g.cgroup.OpenFiles())
		}
	})
}

// The victim of an open incident is counted in every window, whatever else waits.
func TestVictimKeepsItsSeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.source.info.MaxTasks = 100
		r.start()
		defer r.stop()
		r.learn()
		for i := range 40 { // all of them preferred, as the victim was
			r.add(fmt.Sprintf("/web/later-%d", i), 0.5)
		}
		noisy.set(1.5)
		r.pass(4 * time.Minute)
		if len(r.incidents()) != 1 {
			t.Fatalf("%d incidents", len(r.incidents()))
		}
		r.source.info.MaxTasks = 4
		before := len(r.samples)
		r.pass(10 * time.Minute)
		n := 0
		for _, s := range r.samples[before:] {
			if s.Task == "/web/1" && s.Cost == s.Cost {
				n++
			}
		}
		if n != 10 {
			t.Errorf("the victim was counted in %d windows of 10", n)
		}
	})
}

// A source that refuses a task permanently is not asked again; one that lacks
// descriptors, although they were counted, is asked in the next window.
func TestRefusedSeats(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 0.5).cost = func() float64 { return 1 }
		r.add("/batch/job-2", 0.5).cost = func() float64 { return 1 }
		r.source.adding = &counter.FDLimitError{Err: errors.New("too many open files")}
		r.start()
		defer r.stop()
		r.pass(10 * time.Second)
		if r.source.added != 1 {
			t.Errorf("asked for %d tasks after the first lacked descriptors", r.source.added)
		}
		if note := r.task("/batch/job-1").Note; !strings.Contains(note, "too many open files") {
			t.Errorf("note %q", note)
		}
		r.source.adding = nil
		r.pass(time.Minute)
		if st := r.status().Signals[0]; st.Counted != 2 || strings.Contains(r.task("/batch/job-1").Note, "too many") {
			t.Errorf("a window later: %+v, note %q", st, r.task("/batch/job-1").Note)
		}
		r.source.adding = fmt.Errorf("add: %w", counter.ErrNoPerfDir)
		r.add("/batch/job-3", 0.5)
		asked := r.source.added
		r.pass(5 * time.Minute)
		if got := r.source.added - asked; got != 1 {
			t.Errorf("asked %d times for a task that can never be counted", got)
		}
		if got := r.agent.stats.addFailed["cpi"]; got != 2 {
			t.Errorf("%d tasks counted as failed, want 2", got)
		}
	})
}

// A task that ends before it has seen a window costs no counters.
func TestShortLivedTasksOpenNoCounters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.start()
		defer r.stop()
		r.pass(20 * time.Second)
		for range 20 {
			g := r.add("/batch/job-1", 1)
			r.pass(time.Second)
			if g.cgroup == nil || g.cgroup.OpenFiles() != 0 {
				t.Fatal("it was not found, or keeps files")
			}
			g.remove()
		}
		r.pass(time.Second)
		if r.source.added != 0 || len(r.agent.tasks.byKey) != 0 {
			t.Errorf("%d were added to the source, %d are left", r.source.added, len(r.agent.tasks.byKey))
		}
	})
}
