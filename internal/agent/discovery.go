package agent

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/plan"
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
// removed cgroups, only tasks that are no longer found are read: they are gone, or no tasks by
// what is known of them now, such as a name that a rule ignores. In the middle of a
// window (half) busy tasks are read once more, so that for a task that ends before the window
// does, at most the usage of half a window is lost.
func (dc *discovery) updateTasks(now time.Time, half, windowOpen bool) {
	found, fresh, err := dc.Finder.Find(now)
	dc.health.degrade("finding tasks", err)
	unwatched := dc.Finder.Unwatched()
	dc.health.degrade("watching cgroups", unwatched)
	unread := dc.Finder.Unread()
	dc.health.degrade("reading cgroups", unread.AsError())
	dc.health.degrade("names of tasks", dc.Finder.Unnamed())
	var there map[uint64]bool
	ended := false
	if fresh && err == nil {
		there = make(map[uint64]bool, len(found))
		failed, came := map[string]error{}, len(dc.tasks.order)
		for _, f := range found {
			id := sample.CgroupID(f.Hierarchy, f.Inode)
			there[id] = true
			t := dc.tasks.byCgroup[id]
			if t != nil && t.Key.Inode == f.Inode && !dc.update(now, t, f) { // its samples are of another job from now on
				dc.endTask(now, t)
				ended, t = true, nil
			}
			if t == nil {
				if err := dc.monitor(now, f); err != nil {
					failed["monitoring "+f.Path] = err
				}
			}
		}
		if len(dc.tasks.order) > came {
			dc.actor.review(sample.At(now))
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
	again := func() {
		for _, t := range dc.tasks.order {
			gone := there != nil && !there[t.Key.CgroupID()]
			if t.ended || !gone && !(half && t.busy()) {
				continue
			}
			if err := t.readUsage(); gone || errors.Is(err, host.ErrGone) {
				dc.endTask(now, t)
				ended = true
			}
		}
	}
	if half {
		dc.sweep(again)
	} else {
		again()
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
	t := &task{cgroup: cg, seats: make([]slot, len(dc.scheduler.sources)), Task: sample.Task{
		Key:  sample.TaskKey{Hierarchy: f.Hierarchy, Inode: f.Inode, FirstSeen: sample.At(now)},
		Name: f.Name, Job: f.Job, Cgroup: sample.TaskName(f.Path),
	}}
	if f.Name == "" {
		t.Name, t.Cgroup = t.Cgroup, ""
	}
	dc.update(now, t, f)
	if err := t.readUsage(); errors.Is(err, host.ErrGone) {
		return cg.Close()
	}
	for i := range t.seats {
		t.seats[i].waitingSince = dc.scheduler.number + 1
	}
	dc.tasks.add(t)
	dc.Log.Debug("task found", "task", t.Name, "job", t.Job, "class", t.Class, "cgroup", f.Path)
	return nil
}

// update sets how a task may be treated, as it is found now. It returns false, and does nothing, if
// the task has got another name or job: what is known of it now was not known in time.
func (dc *discovery) update(now time.Time, t *task, f Found) bool {
	name := f.Name
	if name == "" {
		name = sample.TaskName(f.Path)
	}
	if t.Name != name || t.Job != f.Job {
		return false
	}
	t.found, t.rule = f, f.Rule
	t.Class, t.NeverCap = f.Class, f.NeverCap || f.Own
	dc.overrides.apply(&t.Task, f.Protected, sample.At(now))
	return true
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

// mostIntroduced bounds the tasks that the log names at the start.
const mostIntroduced = 20

// introduce says in the log, once, what was found and for which tasks others may be capped.
func (dc *discovery) introduce() {
	classes := map[sample.Class]int{}
	var helped []*task
	proposed := false
	for _, t := range dc.tasks.order {
		if t.ended {
			continue
		}
		classes[t.Class]++
		if t.MayBeHelped() {
			helped, proposed = append(helped, t), proposed || t.found.Proposed
		}
	}
	if len(classes) == 0 {
		dc.Log.Warn("no tasks: no rule of the configuration matches a cgroup; `quell init` shows what there is")
		return
	}
	learn := time.Duration(dc.Config.Spec.MinSamples) * dc.Config.Sampling.Period
	dc.Log.Info("tasks found", "latency-sensitive", classes[sample.LatencySensitive], "batch", classes[sample.Batch], "best-effort", classes[sample.BestEffort],
		"others_may_be_capped_for", len(helped), "learning_takes", learn)
	slices.SortFunc(helped, func(x, y *task) int { return strings.Compare(string(x.Name), string(y.Name)) })
	for _, t := range helped[:min(len(helped), mostIntroduced)] {
		dc.Log.Info("others may be capped for", "task", t.Name, "class", t.Class, "proposed", t.found.Proposed, "why", t.found.Why)
	}
	switch mode := dc.pipeline.Policy().Mode; {
	case len(helped) == 0:
		dc.Log.Warn("no task is latency-sensitive or protected: others will be capped for none; set classes in rules, or use `quell protect`")
	case mode == plan.On && proposed:
		dc.Log.Warn("enforcement is on and classes are proposed, not set by rules: check the reasons above")
	}
}
