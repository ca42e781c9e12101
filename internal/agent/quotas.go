package agent

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A task is also throttled when a cgroup above it (a pod, a slice) is out of quota. The
// kernel counts that only for the cgroup that has the quota, so the quotas above the
// tasks are read at both ends of a window.

// quotas is how long each cgroup above a task was throttled. A cgroup is read once for
// all tasks below it.
type quotas struct {
	all   []quota
	stale bool // tasks came, ended or moved since quotas.find listed these cgroups
}

// quota is the throttled time of one cgroup, by its path in the cpu controller's hierarchy.
type quota struct {
	path      string
	before    time.Duration // at the window's start; -1 if it has no quota
	throttled time.Duration // in the window; 0 also if it is not known
}

// beginQuotas reads the quotas at the start of a window.
func (a *Agent) beginQuotas() {
	q := &a.quotas
	if q.stale {
		q.find(a.roster.order)
	}
	for i := range q.all {
		q.all[i].throttled, q.all[i].before = 0, a.throttledTime(q.all[i].path)
	}
}

// find lists the cgroups above the tasks.
func (q *quotas) find(tasks []*task) {
	q.stale, q.all = false, q.all[:0]
	known := map[string]int{}
	for _, t := range tasks {
		t.above = t.above[:0]
		for p := path.Dir(t.places.CPU); len(p) > 1; p = path.Dir(p) {
			i, ok := known[p]
			if !ok {
				i = len(q.all)
				known[p] = i
				q.all = append(q.all, quota{path: p})
			}
			t.above = append(t.above, i)
		}
	}
}

// throttledTime returns -1 also if the value cannot be read; the next window tries again.
func (a *Agent) throttledTime(p string) time.Duration {
	d, err := a.Machine.Throttled(p)
	if err != nil {
		return -1
	}
	return d
}

// lackQuotas reads the quotas at the end of a window.
func (a *Agent) lackQuotas() {
	for i := range a.quotas.all {
		if q := &a.quotas.all[i]; q.before >= 0 {
			q.throttled = max(0, a.throttledTime(q.path)-q.before)
		}
	}
}

// above returns the cgroup above a task that was throttled longest in the window, and
// for how long; "" if none was.
func (q *quotas) above(t *task) (p string, held time.Duration) {
	for _, i := range t.above {
		if d := q.all[i].throttled; d > held {
			p, held = q.all[i].path, d
		}
	}
	return p, held
}

// underCap reports whether a quell cap limits the task: a cap on the task itself or on
// a task that contains it.
func (a *Agent) underCap(t *task) bool {
	return len(a.window.caps) > 0 && slices.ContainsFunc(a.window.caps, func(c plan.CapState) bool { return c.Task.Key == t.Key || within(t.Task, c.Task) })
}

// within reports whether the first task's cgroup is below the other's.
func within(inner, outer sample.Task) bool {
	o, i := string(outer.Name), string(inner.Name)
	return inner.Key.Hierarchy == outer.Key.Hierarchy && len(i) > len(o) && i[:len(o)] == o && i[len(o)] == '/'
}

// throttled returns the flag for a window in which a quota limited the task: Capped for
// a quell cap, Throttled for another quota on the task or above it, or none.
func (a *Agent) throttled(t *task, wall float64) sample.Flags {
	t.notes[noteQuota], t.throttledBy = "", ""
	least := a.pipeline.Params().ThrottledShare * wall
	above, held := a.quotas.above(t)
	switch {
	case t.capped || a.underCap(t):
		return sample.Capped
	case (t.usageNow.Throttled - t.usageStart.Throttled).Seconds() >= least:
		return sample.Throttled
	case above == "" || held.Seconds() < least:
		return 0
	}
	t.throttledBy = above
	t.notes[noteQuota] = fmt.Sprintf("throttled by the CPU quota of %s above it", above)
	return sample.Throttled
}
