package agent

import (
	"path"
	"time"
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
