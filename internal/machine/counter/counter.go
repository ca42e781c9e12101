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
	// Members lists the process ids in the task's cgroup and below it. It is called from
	// several goroutines.
	Members func() ([]int, error)
	// Below lists the kernel ids of the cgroups below it, not itself.
	Below func() ([]uint64, error)
	// CPUTime reads the CPU time that the task has used so far. It is called from several
	// goroutines. nil: not possible.
	CPUTime func() (time.Duration, error)
}

// cpuTime returns the CPU time, and whether it is known.
func (t *Target) cpuTime() (time.Duration, bool) {
	if t.CPUTime == nil {
		return 0, false
	}
	used, err := t.CPUTime()
	return used, err == nil
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

// WindowEnd is what a source is told when a window ends.
type WindowEnd struct {
	CPU CPUTime
	// Next: another window opens at once, so counters may stay on.
	Next bool
}

// Info is what is known of a source since it is open. A source has no other abilities
// than those described here: nothing depends on further methods of its type, which a
// wrapper could hide.
type Info struct {
	Signal sample.SignalName
	// Variant says what is counted, e.g. "ref-cycles"; part of a spec's key.
	Variant string
	// Fallback says what this machine's way of counting leaves out, "" for nothing.
	Fallback string
	// Expensive says why counting is expensive on this machine, and what to do; "" if it
	// is not.
	Expensive string
	// Missing are the optional counters that this machine lacks, one error each.
	Missing []error
	// SwitchOverhead is an upper bound of what counting adds to a context switch between
	// cgroups in a window; 0: not known.
	SwitchOverhead time.Duration
	// Accounts: readings say which tasks were served while others waited. Such a source
	// must also follow tasks whose cost is not asked for: a task that it does not follow
	// is outside any task for it.
	Accounts bool
	// CountsLosses: Totals.Lost and Totals.PairsDropped are counted.
	CountsLosses bool
	// MaxTasks is how many tasks can be followed at once apart from the limit of
	// descriptors, 0 for any number.
	MaxTasks int
	// WindowFDs and IdleFDs are how many file descriptors each task takes in an open
	// window and between windows. They change with the CPUs that are online.
	WindowFDs, IdleFDs int
}

// Totals are values that belong to no task.
type Totals struct {
	// Others is what the last window counted outside all tasks; its zero value if the
	// source does not distinguish that.
	Others Reading
	// Lost is how much could not be counted since the source was opened, and PairsDropped
	// how often there was no room to note a served task.
	Lost, PairsDropped uint64
	// Unattributed sums, since then, the waits for which the served task is not known.
	Unattributed time.Duration
	// Crowded are the tasks with more cgroups than their share of the room in the kernel's
	// maps, in the last window: not all that they did was counted. No other task lacks any.
	Crowded []sample.TaskKey
}

// Source counts one signal for many tasks. It is used from one goroutine.
type Source interface {
	Info() Info
	// SetCPUs sets which CPUs are online, between windows.
	SetCPUs(online sample.Set)
	// Add begins to follow a task; the task is counted from the next window.
	Add(Target) error
	// Remove stops following a task and closes what was open for it. In an open window
	// it reads the last difference first, so that a task's end is not lost; cpu is its
	// CPU time in the window so far.
	Remove(key sample.TaskKey, cpu time.Duration) (Reading, bool)
	// Start opens a window; a Start in an open window is an error.
	Start() error
	// Stop closes the window and yields a reading per task counted.
	Stop(end WindowEnd, yield func(sample.TaskKey, Reading)) error
	// Totals returns the values as of the last Stop or Remove.
	Totals() Totals
	Close() error
}

// MachineSource measures the machine or its caches and no task. Its readings are judged
// like a task's, under the names of stand-ins. It is used from one goroutine.
type MachineSource interface {
	Info() Info
	Start() error
	Stop() error
	// MachineReadings yields the readings of the last window, after Stop: for each the name of
	// the stand-in, and the CPUs it was measured on, nil for all.
	MachineReadings(yield func(name string, cpus sample.Set, r Reading))
	Close() error
}
