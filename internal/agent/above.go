package agent

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
)

// A task is held back as well where a cgroup above it is out of quota (a pod's,
// a slice's), and the kernel counts that for the cgroup with the quota alone.
// So the quotas above the tasks are read at both ends of a window.

// quotas is how long cgroups with quotas have been held back, by their paths in
// the cpu controller's hierarchy; -1 for those without.
type quotas map[string]time.Duration

// markQuotas begins a window.
func (a *Agent) markQuotas() {
	q := quotas{}
	for _, t := range a.tasks {
		for p := path.Dir(t.places.CPU); len(p) > 1; p = path.Dir(p) {
			if _, known := q[p]; !known {
				q[p] = a.heldBack(p)
			}
		}
	}
	a.window.quotas = q
}

// heldBack is -1 also where it cannot be read: the next window tries again.
func (a *Agent) heldBack(p string) time.Duration {
	d, err := a.Machine.Throttled(p)
	if err != nil {
		return -1
	}
	return d
}

// lackQuotas ends it: what is left in window.quotas is how long each was held
// back in the window, not above 0 where that is not known.
func (a *Agent) lackQuotas() {
	for p, before := range a.window.quotas {
		if before >= 0 {
			a.window.quotas[p] = a.heldBack(p) - before
		}
	}
}

// above returns the cgroup above a task that was held back longest in the
// window, and how long; "" if none was.
func (q quotas) above(t *task) (p string, held time.Duration) {
	for up := path.Dir(t.places.CPU); len(up) > 1; up = path.Dir(up) {
		if d := q[up]; d > held {
			p, held = up, d
		}
	}
	return p, held
}

// underCap reports whether a cap of quell's own holds the task: its own, or that
// of a task that it is part of.
func (a *Agent) underCap(t *task) bool {
	return a.planner.Capped(t.Key) || slices.ContainsFunc(a.planner.Caps(), func(c plan.CapState) bool { return within(t.Task, c.Task) })
}

// within reports whether the first task's cgroup is below the other's.
func within(inner, outer sample.Task) bool {
	o, i := string(outer.Name), string(inner.Name)
	return inner.Key.Hierarchy == outer.Key.Hierarchy && len(i) > len(o) && i[:len(o)] == o && i[len(o)] == '/'
}

// throttled says what of a window was the fault of quotas, the task's own or
// above it: nothing, or one of the two flags.
func (a *Agent) throttled(t *task, wall float64) sample.Flags {
	t.notes[noteQuota], t.heldBy = "", ""
	least := a.detector.Params().ThrottledShare * wall
	above, held := a.window.quotas.above(t)
	switch {
	case t.capped || a.underCap(t):
		return sample.Capped
	case (t.last.Throttled - t.base.Throttled).Seconds() >= least:
		return sample.Throttled
	case above == "" || held.Seconds() < least:
		return 0
	}
	t.heldBy = above
	t.notes[noteQuota] = fmt.Sprintf("held back by the CPU quota of %s above it", above)
	return sample.Throttled
}
