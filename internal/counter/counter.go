// Package counter turns kernel counters into readings of a cost signal: perf
// groups in cgroup mode, tracepoints, progress files and the run-queue program,
// all behind one Source.
//
// A source counts in windows. The agent adds the tasks it follows, opens a
// window with Start and closes it with Stop, which yields one Reading for every
// task that could be counted. A task that could not is left out, or its cost
// is NaN: "not counted" is never zero.
package counter

import (
	"time"

	"github.com/quell-dev/quell/internal/sample"
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
	// Scrape or Uprobe, if not nil, say where cpt counts the task's
	// transactions instead.
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
	// Reach are the numbered resources of the signal's domain that the task used
	// since it is followed: nil where that is not known. Only of a signal whose
	// domain is not a matter of CPUs; elsewhere it follows from the task's CPUs.
	Reach sample.Set
	// Coverage is the counted share of the window, 0..1.
	Coverage float64
	Flags    sample.Flags // Restarted, or none
	// Extras are what was counted. Detection takes activity and pressure from them,
	// as the signal's table entry says (sample.Signal).
	Extras sample.Extras
	// Served are who was served by the signal's queue while the task waited in it,
	// who longest first, valid until the next Start; nil where that is not counted.
	Served []Served
	// Variant says what was counted where that is not the Source's Variant.
	Variant string
	// Err is why Cost is NaN, where there is more to say than that.
	Err error
}

// Served is how long one other was served by a queue while a task waited in it.
type Served struct {
	By   sample.TaskKey // zero: outside any task that is followed
	Time time.Duration  // of all the task's threads, requests or packets that waited
}

// CPUTime gives the CPU time that a task used between the window's start and
// its end, and whether that is known.
type CPUTime func(sample.TaskKey) (time.Duration, bool)

// Source counts one signal for many tasks. It is used from one goroutine.
type Source interface {
	Signal() sample.SignalName
	// Variant says what is counted, e.g. "ref-cycles"; part of a spec's key.
	Variant() string
	// Add begins to follow a task; the task is counted from the next window.
	Add(Target) error
	// Remove ends following a task and closes what was open for it. In an
	// open window it reads the last difference first, so that a task's end is
	// not lost; cpu is its CPU time in the window so far.
	Remove(key sample.TaskKey, cpu time.Duration) (Reading, bool)
	// Start opens a window; a Start in an open window is an error.
	Start() error
	// Stop closes the window and yields a reading per task counted.
	Stop(cpu CPUTime, yield func(sample.TaskKey, Reading)) error
	Close() error
}

// Bounded is a Source that can follow only so many tasks at once. It is asked
// before tasks are added.
type Bounded interface {
	// FDs is how many file descriptors each task takes, in an open window and
	// between windows.
	FDs() (window, between int)
	// Most is how many tasks can be followed apart from that, 0 for any number.
	Most() int
}

// Accounting is a Source that tells who was served while tasks waited (Reading.Served).
// It has to follow those too whose cost nobody asks for: what it does not follow is
// outside any task to it.
type Accounting interface {
	// Unattributed sums, since the source was made, the waits of which it is not known
	// who was served. It is not ok where the kernel does not allow to tell that at all.
	Unattributed() (_ time.Duration, ok bool)
	// Refused counts, since then, how often there was no room to note who was served.
	Refused() uint64
}
