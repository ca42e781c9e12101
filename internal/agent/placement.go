package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// placement knows where tasks run: the machine's CPUs, and the cgroups above the tasks with
// their weights and quotas.
type placement struct {
	base
	topology host.Topology // as of the newest window
	reaches  reaches
	groups   cgroupTree
}

// updateTopology reads the topology again when CPUs have gone online or offline, and reports
// whether it has changed.
func (pl *placement) updateTopology() bool {
	online, err := pl.Machine.Online()
	t, changed := pl.topology, err == nil && !slices.Equal(online, pl.topology.Online)
	if changed {
		t, err = pl.Machine.Topology()
	}
	pl.health.degrade("reading the topology", err)
	if err != nil || !changed {
		return false
	}
	pl.Log.Info("the machine's CPUs have changed", "online", t.Online.String(), "were", pl.topology.Online.String())
	pl.topology, pl.reaches = t, reaches{}
	pl.pipeline.SetCPUs(len(t.CPUs))
	for _, t := range pl.tasks.order {
		t.placementRead, t.reach = time.Time{}, reach{} // read them again
	}
	return true
}

// readPlacement reads where a task's processes are and where they may run. The error, which is in
// t.notes, is why the former place stays.
func (pl *placement) readPlacement(now time.Time, t *task) error {
	first, before, cpusBefore := t.placementRead.IsZero(), t.places, t.reach.cpus
	t.placementRead = now
	places, err := t.cgroup.Places()
	if err != nil {
		t.notes[notePlaces] = err.Error()
		return err
	}
	t.places, t.notes[notePlaces] = places, ""
	was := t.group
	t.group = pl.groups.enter(places.CPU, pl.Machine.Weight)
	pl.groups.leave(was)
	if places.Split {
		t.notes[notePlaces] = "split: " + places.Reason
	}
	if cpus, err := t.cgroup.AllowedCPUs(); err == nil && !slices.Equal(cpus, t.reach.cpus) {
		t.reach = pl.reaches.of(&pl.topology, cpus)
	}
	if !first && (places != before || !slices.Equal(t.reach.cpus, cpusBefore)) {
		for _, o := range pl.tasks.order {
			o.placementInterval = 0
		}
	}
	return nil
}

// lookAgain is a look because of elapsed time only.
func (pl *placement) lookAgain(now time.Time, t *task) {
	t.placementInterval = min(lookMost, max(lookEvery, 2*t.placementInterval)) // unless it finds a change
	_ = pl.readPlacement(now, t)
}

// forget is called when a task is dropped.
func (pl *placement) forget(t *task) { pl.groups.leave(t.group) }

// A task is also throttled when a cgroup above it (a pod, a slice) is out of quota. The
// kernel counts that only for the cgroup that has the quota, so the quotas above the
// tasks are read at both ends of a window.

// beginQuotas reads the quotas at the start of a window.
func (pl *placement) beginQuotas() {
	for _, g := range pl.groups.byPath {
		g.throttledBefore, g.throttled = -1, 0
		if g.below > 0 {
			g.throttledBefore = pl.throttledTime(g.path)
		}
	}
}

// throttledTime returns -1 also if the value cannot be read; the next window tries again.
func (pl *placement) throttledTime(p string) time.Duration {
	d, err := pl.Machine.Throttled(p)
	if err != nil {
		return -1
	}
	return d
}

// lackQuotas reads the quotas at the end of a window.
func (pl *placement) lackQuotas() {
	for _, g := range pl.groups.byPath {
		if g.throttledBefore >= 0 {
			g.throttled = max(0, pl.throttledTime(g.path)-g.throttledBefore)
		}
	}
}

// underCap reports whether a quell cap limits the task: a cap on the task itself or on
// a task that contains it.
func underCap(t *task, caps []plan.CapState) bool {
	return len(caps) > 0 && slices.ContainsFunc(caps, func(c plan.CapState) bool { return c.Task.Key == t.Key || c.Task.Contains(&t.Task) })
}

// throttled returns the flag for a window in which a quota limited the task: Capped for
// a quell cap, Throttled for another quota on the task or above it that held it back for at
// least a share of its time, or none. The kernel sums that over CPUs, so the time is what the task
// used and was held back for, or one CPU's, wall seconds, if that is more.
func (pl *placement) throttled(t *task, caps []plan.CapState, share, wall float64) sample.Flags {
	t.notes[noteQuota], t.throttledBy = "", ""
	above, held := t.group.throttledAbove()
	enough := func(d time.Duration) bool { return d.Seconds() >= share*max(wall, t.cpu*wall+d.Seconds()) }
	switch {
	case t.capped || underCap(t, caps):
		return sample.Capped
	case enough(t.usageNow.Throttled - t.usageStart.Throttled):
		return sample.Throttled
	case above == "" || !enough(held):
		return 0
	}
	t.throttledBy = above
	t.notes[noteQuota] = fmt.Sprintf("throttled by the CPU quota of %s above it", above)
	return sample.Throttled
}
