package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// If a victim is throttled by the quota of a cgroup above it, which its own cpu.stat does
// not show, no neighbour is accused, although one is loud in exactly those intervals. The kernel
// sums that time over CPUs: of a task on many of them it takes more.
func TestQuotaAboveTheTaskIsNobodysFault(t *testing.T) {
	for _, c := range []struct{ share, load float64 }{{0, 0.5}, {0.02, 0.5}, {0.5, 0.5}, {0.5, 40}, {4, 40}} {
		share := c.share
		bubble(t, func(t *testing.T) {
			r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
			noisy := r.add("/batch/noisy-1", 0.05)
			r.suffering(noisy).set(c.load)
			r.quotas = map[string]time.Duration{"/web": time.Hour}
			r.start()
			defer r.stop()
			r.learn()
			noisy.set(1.5)
			for range 4 {
				r.pass(30*time.Second + 3*time.Second) // into the window
				r.quotas["/web"] += time.Duration(share * float64(10*time.Second))
				r.pass(27 * time.Second)
			}
			all := r.incidents()
			if len(all) != 1 {
				t.Fatalf("share %g: %d incidents", share, len(all))
			}
			kind, limit, note, by := detect.OwnQuota, "max", "/web above it", "/web"
			if share < 0.05*max(1, c.load) {
				// The neighbour is limited by a trial.
				kind, limit, note, by = detect.Neighbour, "0.1", "", ""
			}
			if got := r.values[noisy.limit()]; all[0].Kind != kind || got != limit || all[0].HeldBy != by {
				t.Errorf("held back %g of the time: %v by %q, the neighbour's limit is %s; want %v by %q and %s", share, all[0].Kind, all[0].HeldBy, got, kind, by, limit)
			}
			if by != "" && !strings.Contains(all[0].Reason, "CPU quota of /web,") {
				t.Errorf("reason %q", all[0].Reason)
			}
			if v := r.task("/web/1"); !strings.Contains(v.Note, note) || note == "" && v.Note != "" {
				t.Errorf("held back %g of the time: note %q, want %q", share, v.Note, note)
			}
		})
	}
}

// A quota that exists only at one end of a window says nothing about the window.
func TestQuotasThatComeAndGo(t *testing.T) {
	m := newMachine(t)
	a := &placement{base: base{Parts: &Parts{Machine: m}, tasks: newTaskSet()}}
	for i, p := range []string{"/a/b/task", "/a/c/task", "/lone"} {
		k := sample.TaskKey{Inode: uint64(i + 1)}
		a.tasks.add(&task{Task: sample.Task{Key: k, Name: sample.TaskName(p)}, places: host.Places{CPU: p}, group: a.groups.enter(p, m.Weight)})
	}
	window := func(begin, end map[string]time.Duration) {
		m.quotas = begin
		a.beginQuotas()
		m.quotas = end
		a.lackQuotas()
	}
	window(map[string]time.Duration{"/a": 5, "/a/b": 7, "/lone": 1}, map[string]time.Duration{"/a": 6, "/a/b": 10, "/lone": 9})
	for p, want := range map[string]string{"/a/b/task": "/a/b", "/a/c/task": "/a", "/lone": ""} {
		i := slices.IndexFunc(a.tasks.order, func(t *task) bool { return t.places.CPU == p })
		if got, held := a.tasks.order[i].group.throttledAbove(); got != want || (held > 0) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", p, got, held, want)
		}
	}
	for _, c := range [][2]map[string]time.Duration{
		{{}, {"/a": 9}},        // set in the window
		{{"/a": 5}, {}},        // lifted
		{{"/a": 5}, {"/a": 4}}, // made again
	} {
		window(c[0], c[1])
		if p, held := a.tasks.order[1].group.throttledAbove(); held != 0 {
			t.Errorf("%v: %s %v", c, p, held)
		}
	}
}

// A task inside one that quell has capped is under that cap: no task is blamed for its
// cost in that time.
func TestTaskInsideACappedOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		r.add("/batch/outer-1", 0.5)
		r.add("/batch/outer-1/job-1", 0.2)
		r.start()
		defer r.stop()
		r.pass(30 * time.Second)
		r.do(capping(command.Target{Task: "/batch/outer-1"}, 0.1, "5m", "test"))
		r.pass(45 * time.Second)
		of := slices.DeleteFunc(slices.Clone(r.samples), func(s sample.Sample) bool { return s.Task == detect.OutsideName })
		for _, s := range of[len(of)-2:] {
			if s.Flags&sample.Capped == 0 {
				t.Errorf("sample of %s without the flag: %+v", s.Task, s)
			}
		}
	})
}
