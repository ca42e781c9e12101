package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// TestACapReachesNoTaskInside: a limit of a cgroup is one of every cgroup below it. A task that
// contains one that is latency-sensitive, protected or never-cap is not capped, neither by the
// rule nor by an operator, and both say which one it is.
func TestACapReachesNoTaskInside(t *testing.T) {
	for inner, spared := range map[string]bool{
		"/batch/noisy-1/web-1":  true,
		"/batch/noisy-1/kept-1": true,
		"/batch/noisy-1/sys-1":  true,
		"/batch/noisy-1/job-1":  false,
		"/batch/noisy-12/web-1": false, // not in it
	} {
		t.Run(inner, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
				noisy := r.add("/batch/noisy-1", 0.05)
				r.suffering(noisy)
				r.add(inner, 0.01)
				r.start()
				defer r.stop()
				r.learn()
				wrote := 0
				r.write = func(string, string) error { wrote++; return nil }
				noisy.set(1.5)
				r.pass(15 * time.Minute)
				if capped := wrote > 0; capped == spared {
					t.Errorf("%d limits were written", wrote)
				}
				all := r.incidents()
				if len(all) == 0 {
					t.Fatal("nothing was found")
				}
				want := "/batch/noisy-1: its cgroup contains " + inner + ", which may not be limited"
				if says := strings.Contains(all[0].NotDone, want); says != spared {
					t.Errorf("the incident says %q", all[0].NotDone)
				}
				if !spared {
					return
				}
				if v := r.task("/batch/noisy-1"); v.Holds != sample.TaskName(inner) {
					t.Errorf("the task is shown as %+v", v.Task)
				}
				c := capping(command.Target{Task: "/batch/noisy-1"}, 0.25, "3m", "too loud")
				if why := r.refused(c, http.StatusConflict); !strings.Contains(why, inner) || wrote > 0 {
					t.Errorf("an operator's cap: %q, %d limits written", why, wrote)
				}
			})
		})
	}
}

// TestACapEndsForATaskInside: at once, not at the end of its lease, if such a task comes, or an
// operator protects one that is there. Without it the task may be capped again.
func TestACapEndsForATaskInside(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=off")
		noisy := r.add("/batch/noisy-1", 0.5)
		r.add("/batch/noisy-1/job-1", 0.1)
		r.start()
		defer r.stop()
		r.pass(90 * time.Second)
		limit := func(when, want string) {
			t.Helper()
			if got := r.values[noisy.limit()]; got != want {
				t.Errorf("%s the limit is %q, want %q", when, got, want)
			}
		}
		c := capping(command.Target{Task: "/batch/noisy-1"}, 0.25, "1h", "too loud")
		r.do(c)
		limit("capped,", "0.25")
		web := r.add("/batch/noisy-1/web-1", 0.1)
		r.pass(2 * time.Second)
		limit("with a latency-sensitive task in it", "max")
		if log := r.audit(); !strings.Contains(log[len(log)-1].Why, "its cgroup contains /batch/noisy-1/web-1") {
			t.Errorf("audit %+v", log[len(log)-1])
		}
		web.remove()
		r.pass(2 * time.Second)
		r.do(c)
		limit("without it", "0.25")
		inner := command.Target{Task: "/batch/noisy-1/job-1"}
		r.do(protecting(inner, true, "it matters"))
		limit("with a protected task in it", "max")
		r.refused(c, http.StatusConflict)
		r.do(protecting(inner, false, "it does not"))
		r.do(c)
		limit("without protection", "0.25")
	})
}

// Tasks that have names from their runtimes contain each other by their cgroups' paths, which the
// names do not show.
func TestNestedUnderOtherNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		outer, inner := r.add("/batch/noisy-1", 0.5), r.add("/batch/noisy-1/web-1", 0.1)
		outer.facts = &origin.Facts{Name: "runner.service", Job: "runner.service"}
		inner.facts = &origin.Facts{Name: "shop/web-0/app", Job: "shop/web/app"}
		r.start()
		defer r.stop()
		r.pass(90 * time.Second)
		if v := r.task("runner.service"); v.Holds != "shop/web-0/app" {
			t.Errorf("the task is shown as %+v", v.Task)
		}
		c := capping(command.Target{Task: "runner.service"}, 0.25, "3m", "too loud")
		if why := r.refused(c, http.StatusConflict); !strings.Contains(why, "shop/web-0/app") || r.values[outer.limit()] != "max" {
			t.Errorf("an operator's cap: %q, the limit is %s", why, r.values[outer.limit()])
		}
		inner.remove()
		r.pass(2 * time.Second)
		if r.do(c); r.values[outer.limit()] != "0.25" {
			t.Errorf("without it the limit is %s", r.values[outer.limit()])
		}
	})
}

// On a machine with v1 controllers, a task's processes may be below another's cgroup in the cpu
// controller's hierarchy although the names do not show it.
func TestNestedByTheCPUController(t *testing.T) {
	ts := newTaskSet()
	v1 := &task{Task: sample.Task{Name: "/outer", Class: sample.Batch, Key: sample.TaskKey{Hierarchy: sample.V1CPU, Inode: 1}}}
	inner := &task{Task: sample.Task{Name: "/web.scope", Class: sample.LatencySensitive, Key: sample.TaskKey{Inode: 2}}}
	other := &task{Task: sample.Task{Name: "/outer-2", Class: sample.Batch, Key: sample.TaskKey{Hierarchy: sample.V1CPU, Inode: 3}}}
	for _, x := range []*task{v1, inner, other} {
		ts.add(x)
	}
	for place, want := range map[string]sample.TaskName{"/outer/a/b": "/web.scope", "/outer": "/web.scope", "/elsewhere": "", "": "", "/": ""} {
		inner.places.CPU = place
		if ts.nest(); v1.Holds != want || other.Holds != "" || inner.Holds != "" {
			t.Errorf("%q: it holds %q, want %q", place, v1.Holds, want)
		}
	}
}
