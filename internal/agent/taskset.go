package agent

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// taskSet is the followed tasks.
type taskSet struct {
	byKey    map[sample.TaskKey]*task
	byCgroup map[uint64]*task // by TaskKey.CgroupID
	// order is the same tasks, and those that ended in the open window, in the order in which
	// they were found.
	order []*task
	stale bool // tasks came or ended since settle
	// limits are the same tasks by the cgroups that a limit on them applies to; only nest
	// uses it.
	limits map[host.Place]*task
	// generation changes whenever tasks come or end.
	generation int
	// pseudo are the stand-ins that machine-wide signals judge, by signal and name.
	pseudo map[string]*task
}

// base is what all parts use, and what the agent was given; they embed it.
type base struct {
	*Parts
	pipeline *pipeline.Pipeline
	health   *health
	clock    *clock
	stats    *stats
	tasks    *taskSet
}

// sweep calls read, which reads usage or pressure of many tasks.
func (b *base) sweep(read func()) {
	if err := b.Machine.ReadAccounts(); err != nil { // it is not tried again
		b.health.degrade("reading usage of all tasks at once", err)
	}
	read()
	b.Machine.EndAccounts()
}

func newTaskSet() *taskSet {
	return &taskSet{byKey: map[sample.TaskKey]*task{}, byCgroup: map[uint64]*task{}, limits: map[host.Place]*task{}, pseudo: map[string]*task{}}
}

func (ts *taskSet) add(t *task) {
	ts.byKey[t.Key], ts.byCgroup[t.Key.CgroupID()] = t, t
	ts.order = append(ts.order, t)
	ts.stale = true
	ts.generation++
}

// dropEnded removes the tasks that have ended and calls gone for each.
func (ts *taskSet) dropEnded(gone func(*task)) {
	ts.order = slices.DeleteFunc(ts.order, func(t *task) bool {
		if t.ended {
			gone(t)
			ts.stale = true
			ts.generation++
		}
		return t.ended
	})
}

// settle sorts order, and computes what depends only on which tasks exist.
func (ts *taskSet) settle() {
	if !ts.stale {
		return
	}
	ts.stale = false
	slices.SortFunc(ts.order, func(x, y *task) int {
		return cmp.Or(cmp.Compare(x.Key.FirstSeen, y.Key.FirstSeen), cmp.Compare(x.Key.Inode, y.Key.Inode), cmp.Compare(x.Key.Hierarchy, y.Key.Hierarchy))
	})
	follows := make(map[host.Place]bool, len(ts.order))
	for _, t := range ts.order {
		follows[host.Place{Hierarchy: t.Key.Hierarchy, Path: t.Path()}] = true
	}
	for i, t := range ts.order {
		t.index, t.inner = i, false
		for p := path.Dir(t.Path()); p != "/" && p != "." && !t.inner; p = path.Dir(p) {
			t.inner = follows[host.Place{Hierarchy: t.Key.Hierarchy, Path: p}]
		}
	}
}

// nest finds the tasks that contain a task that is spared (sample.Task.Holds). A task is in
// another's cgroup by its path, or because its processes are below the other's in the cpu
// controller's hierarchy.
func (ts *taskSet) nest() {
	clear(ts.limits)
	for _, t := range ts.byKey {
		t.Holds = ""
		if !t.ended {
			ts.limits[host.Place{Hierarchy: t.Key.Hierarchy, Path: t.Path()}] = t
		}
	}
	for _, t := range ts.byKey {
		if t.ended || !t.Spared() {
			continue
		}
		ts.hold(t, host.Place{Hierarchy: t.Key.Hierarchy, Path: path.Dir(t.Path())})
		if t.Key.Hierarchy != sample.V1CPU && t.places.CPU != "" {
			ts.hold(t, host.Place{Hierarchy: sample.V1CPU, Path: t.places.CPU})
		}
	}
}

// hold sets Holds of the tasks whose cgroup is at a place, or above it, to a task that is there.
func (ts *taskSet) hold(t *task, at host.Place) {
	for ; at.Path != "/" && at.Path != "."; at.Path = path.Dir(at.Path) {
		if outer := ts.limits[at]; outer != nil && (outer.Holds == "" || t.Name < outer.Holds) {
			outer.Holds = t.Name
		}
	}
}

type notFoundError struct{ what string }

func (e *notFoundError) Error() string { return e.what }

// find resolves a task's whole name or path, or another text that names only this one
// (sample.Task.IsNamed).
func (ts *taskSet) find(name string) (*task, error) {
	text := name
	name, err := sample.ParseName(text)
	if err != nil {
		return nil, &notFoundError{err.Error()}
	}
	var hits []*task
	for _, t := range ts.byKey {
		switch {
		case t.ended:
		case string(t.Name) == name || t.Path() == name:
			return t, nil
		case t.IsNamed(name):
			hits = append(hits, t)
		}
	}
	switch len(hits) {
	case 0:
		return nil, &notFoundError{fmt.Sprintf("unknown task %q", text)}
	case 1:
		return hits[0], nil
	}
	names := make([]string, len(hits))
	for i, t := range hits {
		names[i] = t.Name.String()
	}
	slices.Sort(names)
	return nil, &notFoundError{fmt.Sprintf("task %q is ambiguous: it matches %s", text, strings.Join(names, ", "))}
}

// resolve finds the tasks that a target names: one task, or all tasks that match the
// target, sorted by name.
func (ts *taskSet) resolve(target command.Target) ([]*task, error) {
	if !target.IsGroup() {
		t, err := ts.find(target.Task)
		return []*task{t}, err
	}
	var all []*task
	for _, t := range ts.byKey {
		if !t.ended && target.Matches(&t.Task) {
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return nil, &notFoundError{"no task on this machine matches " + target.String()}
	}
	slices.SortFunc(all, func(x, y *task) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return all, nil
}

// pseudoTask returns what is judged in place of a task. It is not in the set, and its
// name cannot be a task's: those begin with "/".
func (ts *taskSet) pseudoTask(sig sample.SignalName, name string) *task {
	key := string(sig) + name
	if t := ts.pseudo[key]; t != nil {
		return t
	}
	t := &task{Task: sample.Task{Name: sample.TaskName(name), Job: sample.JobName("(" + string(sig) + ")"), Class: sample.Batch, NeverCap: true,
		Key: sample.TaskKey{Hierarchy: sample.Unified, FirstSeen: sample.Millis(1 + len(ts.pseudo))}}}
	ts.pseudo[key] = t
	return t
}
