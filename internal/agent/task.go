package agent

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// task is the agent's state for a task that it follows.
type task struct {
	sample.Task
	rule   *config.Matcher
	found  Found // as it was found last
	cgroup Cgroup
	places host.Places
	notes  [numNotes]string // why something is not known of it
	seats  []slot           // by source, as Parts.Sources
	index  int              // in taskSet.order
	inner  bool             // it is part of another task, whose usage includes its own

	usageStart, usageNow host.Usage // at the window's start, newest
	hasUsage             bool       // last was read at least once
	tallied              bool       // it is the sum of its processes
	counted              bool       // it was present at the window's start
	measured             bool       // it has seen the end of a window
	capped               bool       // a cap was in force in the window
	ended                bool       // it has ended; kept until the window is closed
	final                map[sample.SignalName]counter.Reading

	subjects []*pipeline.Subject // by signal
	pressure pressure            // on the CPU

	reach             reach         // of the CPUs that it may run on
	group             *cgroupNode   // that its threads are in; nil if that is not known
	placementRead     time.Time     // when places and reach were read
	placementInterval time.Duration // time to the next look, while it is busy
	judged            []judged      // in the newest window, by the signals that were counted
	cpu               float64       // CPU-s/s of the last interval
	flags             sample.Flags
	// threads at the last interval's end. They are counted only if samples are recorded and
	// the task was busy: that reads some files of each cgroup below it. 0: not counted.
	threads     int
	blind       blindUsage
	throttledBy string // the cgroup above it that was out of quota in the last interval
}

// judged is how a task was judged by a signal in the newest window.
type judged struct {
	signal                         sample.SignalName
	cost, limit, coverage, readyIn float64    // as in api.SignalView
	spec                           *spec.Spec // its subject's; nil if there was no cost
	outlier                        bool
}

func (j *judged) view() api.SignalView {
	v := api.SignalView{Signal: j.signal, Cost: incident.Value(j.cost), Limit: incident.Value(j.limit), Outlier: j.outlier, Coverage: j.coverage, ReadyIn: j.readyIn}
	if j.spec != nil {
		v.Spec = *j.spec
	}
	return v
}

// blindUsage is the usage of a task in the newest window and in the newest stretch, CPU-s/s;
// NaN if it is not known.
type blindUsage struct {
	inside, outside float64
	from            time.Duration // CPU time when the stretch began
	began           bool
}

// What a task's note is about.
const (
	noteUsage = iota
	notePlaces
	noteQuota
	noteReading
	numNotes
)

// slot is the state of a task for one source.
type slot struct {
	slotRequest
	counting    bool   // the source follows the task
	lastErr     string // why the last attempt to follow it failed; "" if it succeeded
	unsupported bool   // every further attempt would fail too
	// Windows in which the task was present, and those of them in which it was counted:
	// their ratio is the task's coverage in time.
	windows, countedWindows uint64
}

// readUsage reads the task's usage, and records why it cannot be read. Usage from before the
// first reading does not belong to this window.
func (t *task) readUsage() error {
	u, err := t.cgroup.Usage()
	tallied := errors.Is(err, host.ErrNoUsage)
	if tallied {
		u.CPU, err = t.cgroup.Tally()
	}
	t.notes[noteUsage] = ""
	if err != nil {
		t.notes[noteUsage] = err.Error()
		return err
	}
	if !t.hasUsage || t.tallied != tallied { // the two do not continue each other
		t.usageStart, t.hasUsage, t.tallied = u, true, tallied
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
	return t.reach.cpus.Len() == 0 || now.Sub(t.placementRead) >= pause
}

// target is the task as a source sees it.
func (t *task) target() counter.Target {
	c := counter.Target{Key: t.Key, Dir: t.cgroup.Dir(), Progress: t.rule.Progress, Members: t.cgroup.Members, Below: t.cgroup.Below,
		CPUTime: t.cgroup.CPUTime()}
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

// missing is how many more samples of a signal the task's spec needs; 0 if that is not known.
func (t *task) missing(sig sample.SignalName) int {
	for _, sub := range t.subjects {
		if sub.Key.Signal == sig {
			return sub.Missing()
		}
	}
	return 0
}
