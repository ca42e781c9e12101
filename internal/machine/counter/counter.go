// Package counter turns kernel counters into readings of a cost signal: perf
// groups in cgroup mode, tracepoints, progress files and the run-queue program,
// all behind one Source.
//
// A source counts in windows. The agent adds the tasks it follows, opens a
// window with Start and closes it with Stop, which yields one Reading for every
// task that could be counted. A task that could not be counted is left out, or
// its cost is NaN: "not counted" is never zero.
package counter

import (
	"errors"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

var (
	// ErrOpen is the error of Start in an open window.
	ErrOpen = errors.New("start window: one is open already")
	// ErrNotOpen is the error of Stop without an open window.
	ErrNotOpen = errors.New("stop window: none is open")
)

// Target is a task as a source sees it.
type Target struct {
	Key sample.TaskKey
	// Dir is the cgroup directory in the identity hierarchy, absolute.
	Dir string
	// PerfDir is the directory in cgroup2, which perf_event_open needs; ""
	// if the task has none but the root.
	PerfDir string
	// Progress is the task's progress file as a rule gives it, "" to look for
	// QUELL_PROGRESS in its processes' environment.
	Progress string
	// Scrape or Uprobe, if not nil, says where cpt counts the task's transactions
	// instead.
	Scrape *Scrape
	Uprobe *Uprobe
	// Members lists the process ids in the task's cgroup and below it.
	Members func() ([]int, error)
	// Below lists the kernel ids of the cgroups below it, not itself.
	Below func() ([]uint64, error)
}

// Reading is what a source counted for one target over one window.
type Reading struct {
	// Cost in the signal's unit; NaN where it could not be counted.
	Cost float64
	// Reach is the set of numbered resources of the signal's domain that the task has
	// used since it is followed, nil if not known. It is set only if the domain does
	// not follow from CPUs; else the task's CPUs determine it.
	Reach sample.Set
	// Coverage is the counted share of the window, 0..1.
	Coverage float64
	Flags    sample.Flags // Restarted, or none
	// Extras are the counted values. Detection takes activity and pressure from them,
	// as the signal's table entry says (sample.Signal).
	Extras sample.Extras
	// Served are the tasks that the queue served while this task waited in it, longest
	// first, valid until the next Start; nil if that is not counted.
	Served []Served
	// Variant says what was counted if that is not the Source's Variant.
	Variant string
	// Err is the reason why Cost is NaN, if more is known than that.
	Err error
}

// Served is how long a queue served one other task while a task waited in it.
type Served struct {
	By   sample.TaskKey // zero: outside any followed task
	Time time.Duration  // summed over the task's threads, requests or packets that waited
}

// CPUTime returns the CPU time that a task used between the window's start and its end,
// and whether that is known.
type CPUTime func(sample.TaskKey) (time.Duration, bool)

// Source counts one signal for many tasks. It is used from one goroutine.
type Source interface {
	Signal() sample.SignalName
	// Variant says what is counted, e.g. "ref-cycles"; part of a spec's key.
	Variant() string
	// Add begins to follow a task; the task is counted from the next window.
	Add(Target) error
	// Remove stops following a task and closes what was open for it. In an open window
	// it reads the last difference first, so that a task's end is not lost; cpu is its
	// CPU time in the window so far.
	Remove(key sample.TaskKey, cpu time.Duration) (Reading, bool)
	// Start opens a window; a Start in an open window is an error.
	Start() error
	// Stop closes the window and yields a reading per task counted.
	Stop(cpu CPUTime, yield func(sample.TaskKey, Reading)) error
	Close() error
}

// Bounded is a Source that can follow only a limited number of tasks at once. It is
// asked before tasks are added.
type Bounded interface {
	// FDs returns how many file descriptors each task takes, in an open window and
	// between windows.
	FDs() (window, between int)
	// Most returns how many tasks can be followed apart from that, 0 for any number.
	Most() int
}

// Accounting is a Source that reports which tasks were served while others waited
// (Reading.Served). It must also follow tasks whose cost is not asked for: a task that
// it does not follow is outside any task for it.
type Accounting interface {
	// Unattributed sums, since the source was made, the waits for which the served task
	// is not known. ok is false if the kernel does not allow to determine that at all.
	Unattributed() (_ time.Duration, ok bool)
	// PairsDropped returns how often, since then, there was no room to note a served task.
	PairsDropped() uint64
}
