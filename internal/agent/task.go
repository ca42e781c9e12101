package agent

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

type cgroupID struct {
	hierarchy sample.Hierarchy
	inode     uint64
}

// task is the agent's state for a task that it follows.
type task struct {
	sample.Task
	rule   *config.Matcher
	job    *job
	cgroup Cgroup
	places host.Places
	notes  [numNotes]string // why something is not known of it
	seats  []slot           // by source, as Parts.Sources
	index  int              // in roster.order
	above  []int            // cgroups above it, nearest first, in quotas.all
	inner  bool             // it is part of another task, whose usage includes its own

	usageStart, usageNow host.Usage // at the window's start, newest
	hasUsage             bool       // last was read at least once
	counted              bool       // it was present at the window's start
	measured             bool       // it has seen the end of a window
	capped               bool       // a cap was in force in the window
	ended                bool       // it has ended; kept until the window is closed
	final                map[sample.SignalName]counter.Reading

	subjects []*pipeline.Subject // by signal
	pressure pressure            // on the CPU

	cpus              sample.Set    // that it may run on
	reach             reach         // derived from cpus
	group             *weightNode   // that its threads are in; nil if its weight is not known
	placementRead     time.Time     // when places and cpus were read
	placementInterval time.Duration // time to the next look, while it is busy
	views             []api.SignalView
	cpu               float64 // CPU-s/s of the last interval
	flags             sample.Flags
	// threads at the last interval's end. They are counted only if samples are recorded and
	// the task was busy: that reads some files of each cgroup below it. 0: not counted.
	threads     int
	throttledBy string // the cgroup above it that was out of quota in the last interval
}

// What a task's note is about.
const (
	noteUsage = iota
	notePlaces
	noteQuota
	noteReading
	numNotes
)

// readUsage reads the task's usage, and records why it cannot be read. Usage from before the
// first reading does not belong to this window.
func (t *task) readUsage() error {
	u, err := t.cgroup.Usage()
	t.notes[noteUsage] = ""
	if err != nil {
		t.notes[noteUsage] = err.Error()
		return err
	}
	if !t.hasUsage {
		t.usageStart, t.hasUsage = u, true
	}
	t.usageNow = u
	return nil
}

// pressure is a cgroup's PSI over windows. It explains incidents but does not decide
// them: it does not distinguish a neighbour's effect from a quota's.
type pressure struct {
	last  time.Duration // total at the last reading
	known bool          // last was read, without a gap since
	share float64       // of the last window
	said  bool          // share is known
}

// begin reads the total, unless the end of the previous window has just done so.
func (p *pressure) begin(c Cgroup) {
	if !p.known {
		p.read(c)
	}
}

// end computes for what share of the window (wall) at least one thread waited.
func (p *pressure) end(c Cgroup, wall time.Duration, contiguous bool) {
	from, known := p.last, p.known
	p.read(c)
	if p.said = known && p.known && wall > 0; p.said {
		p.share = min(1, max(0, float64(p.last-from)/float64(wall)))
	}
	p.known = p.known && contiguous
}

func (p *pressure) read(c Cgroup) {
	d, err := c.Stalled("cpu")
	p.last, p.known = d, err == nil
}

// lookEvery is how often a task's places and CPUs are read again: its members and their
// affinity may change at any time, and reading them takes a few files per thread, a
// hundred times the cost of reading its usage. While looks find no change, the interval
// doubles, up to lookMost. A look that finds a change resets it for all tasks: tasks
// are usually moved together. A task that has used next to no CPU since is neither
// victim nor suspect and has the longest interval.
const (
	lookEvery = time.Minute
	lookMost  = 10 * time.Minute
	idle      = 0.01 // CPU-s/s
)

// busy reports whether it may have used a relevant amount of CPU since its usage was
// read: it did in its last window, or it has completed none.
func (t *task) busy() bool { return t.cpu >= idle || !t.measured }

// dueLook reports whether the task's places and CPUs must be read again.
func (t *task) dueLook(now time.Time) bool {
	pause := max(lookEvery, t.placementInterval)
	if t.cpu < idle {
		pause = lookMost
	}
	// Tasks that came together are spread over several windows.
	pause -= pause / 4 * time.Duration(t.Key.Inode%16) / 16
	return t.cpus.Len() == 0 || now.Sub(t.placementRead) >= pause
}

// updateTasks follows new tasks and stops following ended ones. Reading a task's usage also
// shows that it is gone, but between windows usage is not needed: if the kernel reports
// removed cgroups, only tasks that are no longer found are read. In the middle of a
// window busy tasks are read once more, so that for a task that ends before the window
// does, at most the usage of half a window is lost.
func (a *Agent) updateTasks(now time.Time) {
	found, fresh, err := a.Finder.Find(now)
	a.degrade("finding tasks", err)
	unwatched := a.Finder.Unwatched()
	a.degrade("watching cgroups", unwatched)
	var there map[cgroupID]bool
	if fresh && err == nil {
		there = make(map[cgroupID]bool, len(found))
		failed := map[string]error{}
		for _, f := range found {
			id := cgroupID{f.Hierarchy, f.Inode}
			there[id] = true
			if a.byCgroup[id] == nil {
				if err := a.monitor(now, f); err != nil {
					failed["monitoring "+f.Path] = err
				}
			}
		}
		for what := range a.monitorErrs {
			a.degrade(what, failed[what]) // nil also if it is gone
		}
		for what, err := range failed {
			a.degrade(what, err)
		}
		a.monitorErrs = failed
	}
	half := a.window.half(now, a.config)
	if !half && there == nil {
		return
	}
	ended := false
	for _, t := range a.roster.order {
		gone := there != nil && !there[cgroupID{t.Key.Hierarchy, t.Key.Inode}]
		if t.ended || !gone && !(half && t.busy()) {
			continue
		}
		if err := t.readUsage(); errors.Is(err, host.ErrGone) {
			a.endTask(now, t)
			ended = true
		}
	}
	if ended && !a.window.open {
		a.roster.dropEnded(a.dropTask)
	}
}

func (a *Agent) monitor(now time.Time, f Found) error {
	cg, err := a.Finder.Open(f)
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
	t := &task{cgroup: cg, rule: f.Rule, job: a.jobs.of(f.Job), seats: make([]slot, len(a.Sources)), Task: sample.Task{
		Key:  sample.TaskKey{Hierarchy: f.Hierarchy, Inode: f.Inode, FirstSeen: sample.At(now)},
		Name: sample.TaskName(f.Path), Job: f.Job, Class: f.Rule.Class,
		NeverCap: f.Rule.NeverCap || f.Own,
	}}
	a.applyProtection(t)
	if err := t.readUsage(); errors.Is(err, host.ErrGone) {
		return cg.Close()
	}
	for i := range t.seats {
		t.seats[i].waitingSince = a.window.number + 1
	}
	a.tasks[t.Key] = t
	a.roster.add(t)
	a.byCgroup[cgroupID{f.Hierarchy, f.Inode}] = t
	a.Log.Debug("task found", "task", t.Name, "job", t.Job, "class", t.Class)
	return nil
}

func (a *Agent) target(t *task) counter.Target {
	c := counter.Target{Key: t.Key, Dir: t.cgroup.Dir(), Progress: t.rule.Progress, Members: t.cgroup.Members, Below: t.cgroup.Below}
	if t.Key.Hierarchy == sample.Unified {
		c.PerfDir = c.Dir
	}
	if p := t.rule.Prometheus; p != nil {
		c.Scrape = &counter.Scrape{Port: p.Port, Path: cmp.Or(p.Path, "/metrics"), Metric: p.Metric, Labels: p.Labels}
	}
	if u := t.rule.Uprobe; u != nil {
		c.Uprobe = &counter.Uprobe{Binary: u.Binary, Symbol: u.Symbol, Offset: u.Place(), BuildID: u.BuildID,
			MaxRate: cmp.Or(u.MaxRate, config.DefaultMaxRate)}
	}
	return c
}

// readPlacement reads where a task's processes are and where they may run.
func (a *Agent) readPlacement(now time.Time, t *task) {
	first, places, cpus := t.placementRead.IsZero(), t.places, t.cpus
	t.placementRead = now
	a.updatePlacement(t)
	if !first && (t.places != places || !slices.Equal(t.cpus, cpus)) {
		for _, o := range a.roster.order {
			o.placementInterval = 0
		}
	}
}

// lookAgain is a look because of elapsed time only.
func (a *Agent) lookAgain(now time.Time, t *task) {
	t.placementInterval = min(lookMost, max(lookEvery, 2*t.placementInterval)) // unless it finds a change
	a.readPlacement(now, t)
}

func (a *Agent) updatePlacement(t *task) {
	places, err := t.cgroup.Places()
	if err != nil {
		t.notes[notePlaces] = err.Error()
		return
	}
	if places.CPU != t.places.CPU {
		a.quotas.stale = true
	}
	t.places, t.notes[notePlaces] = places, ""
	was := t.group
	t.group = a.groups.enter(places.CPU, a.Machine.Weight)
	a.groups.leave(was)
	if places.Split {
		t.notes[notePlaces] = "split: " + places.Reason
	}
	if cpus, err := t.cgroup.AllowedCPUs(); err == nil && !slices.Equal(cpus, t.cpus) {
		t.reach = a.reaches.of(&a.Topology, cpus)
		t.cpus = t.reach.cpus
	}
}

// endTask stops following a task whose cgroup is gone. Its last usage counts in the open
// window, so it is kept until that is closed.
func (a *Agent) endTask(now time.Time, t *task) {
	t.ended = true
	delete(a.byCgroup, cgroupID{t.Key.Hierarchy, t.Key.Inode})
	a.removeFromSources(t)
	if err := t.cgroup.Close(); err != nil {
		a.Log.Warn("close task's files", "task", t.Name, "reason", err)
	}
	ms := sample.At(now)
	a.pipeline.Gone(ms, t.Key)
	a.carryOut(ms)
	a.Log.Debug("task gone", "task", t.Name)
}

func (a *Agent) dropTask(t *task) {
	delete(a.tasks, t.Key)
	a.groups.leave(t.group)
	a.quotas.stale = true
	a.pipeline.Forget(t.Key)
}

// subject is the task as judged by the signal of a sample.
func (t *task) subject(p sample.Platform, s *sample.Sample) *pipeline.Subject {
	i := slices.IndexFunc(t.subjects, func(sub *pipeline.Subject) bool { return sub.Key.Signal == s.Signal })
	if i < 0 {
		i = len(t.subjects)
		t.subjects = append(t.subjects, &pipeline.Subject{})
	}
	sub := t.subjects[i]
	key := spec.Key{Job: t.Job, Platform: p, Signal: s.Signal, Variant: s.Variant}
	if sub.Key != key && (sub.Key == spec.Key{} || s.Cost == s.Cost) { // a reading that was not counted has no variant
		*sub = pipeline.Subject{Key: key}
	}
	if sub.Task != t.Task {
		sub.Task = t.Task
	}
	return sub
}

// judges reports whether a signal judges this task.
func (t *task) judges(s sample.SignalName) bool {
	return !s.OfMachine() && (len(t.rule.Signals) == 0 || slices.Contains(t.rule.Signals, string(s)))
}
