package agent

import (
	"errors"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// discovery follows the tasks that exist.
type discovery struct {
	base
	// monitorErrs are the tasks that could not be followed at the last Find, with the error.
	monitorErrs map[string]error
	overrides   *overrides
	placement   *placement
	scheduler   *scheduler
	actor       *actor
}

// updateTasks follows new tasks and stops following ended ones. Reading a task's usage also
// shows that it is gone, but between windows usage is not needed: if the kernel reports
// removed cgroups, only tasks that are no longer found are read. In the middle of a
// window (half) busy tasks are read once more, so that for a task that ends before the window
// does, at most the usage of half a window is lost.
func (dc *discovery) updateTasks(now time.Time, half, windowOpen bool) {
	found, fresh, err := dc.Finder.Find(now)
	dc.health.degrade("finding tasks", err)
	unwatched := dc.Finder.Unwatched()
	dc.health.degrade("watching cgroups", unwatched)
	unread := dc.Finder.Unread()
	dc.health.degrade("reading cgroups", unread.AsError())
	var there map[uint64]bool
	if fresh && err == nil {
		there = make(map[uint64]bool, len(found))
		failed := map[string]error{}
		for _, f := range found {
			id := sample.CgroupID(f.Hierarchy, f.Inode)
			there[id] = true
			if dc.tasks.byCgroup[id] == nil {
				if err := dc.monitor(now, f); err != nil {
					failed["monitoring "+f.Path] = err
				}
			}
		}
		for what := range dc.monitorErrs {
			dc.health.degrade(what, failed[what]) // nil also if it is gone
		}
		for what, err := range failed {
			dc.health.degrade(what, err)
		}
		dc.monitorErrs = failed
	}
	if !half && there == nil {
		return
	}
	ended := false
	for _, t := range dc.tasks.order {
		gone := there != nil && !there[t.Key.CgroupID()]
		if t.ended || !gone && !(half && t.busy()) {
			continue
		}
		if err := t.readUsage(); errors.Is(err, host.ErrGone) {
			dc.endTask(now, t)
			ended = true
		}
	}
	if ended && !windowOpen {
		dc.tasks.dropEnded(dc.dropTask)
	}
}

func (dc *discovery) monitor(now time.Time, f Found) error {
	cg, err := dc.Finder.Open(f)
	if errors.Is(err, host.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	// It keeps its files open after its first window, if there are enough descriptors.
	if err := cg.KeepOpen(false); err != nil {
		return errors.Join(err, cg.Close())
	}
	t := &task{cgroup: cg, rule: f.Rule, seats: make([]slot, len(dc.scheduler.sources)), Task: sample.Task{
		Key:  sample.TaskKey{Hierarchy: f.Hierarchy, Inode: f.Inode, FirstSeen: sample.At(now)},
		Name: sample.TaskName(f.Path), Job: f.Job, Class: f.Rule.Class,
		NeverCap: f.Rule.NeverCap || f.Own,
	}}
	dc.overrides.apply(&t.Task, t.rule, sample.At(now))
	if err := t.readUsage(); errors.Is(err, host.ErrGone) {
		return cg.Close()
	}
	for i := range t.seats {
		t.seats[i].waitingSince = dc.scheduler.number + 1
	}
	dc.tasks.add(t)
	dc.Log.Debug("task found", "task", t.Name, "job", t.Job, "class", t.Class)
	return nil
}

// endTask stops following a task whose cgroup is gone. Its last usage counts in the open
// window, so it is kept until that is closed.
func (dc *discovery) endTask(now time.Time, t *task) {
	t.ended = true
	delete(dc.tasks.byCgroup, t.Key.CgroupID())
	dc.scheduler.removeFromSources(t)
	if err := t.cgroup.Close(); err != nil {
		dc.Log.Warn("close task's files", "task", t.Name, "reason", err)
	}
	ms := sample.At(now)
	dc.pipeline.Gone(ms, t.Key)
	dc.actor.carryOut(ms)
	dc.Log.Debug("task gone", "task", t.Name)
}

func (dc *discovery) dropTask(t *task) {
	delete(dc.tasks.byKey, t.Key)
	dc.placement.forget(t)
	dc.pipeline.Forget(t.Key)
}
