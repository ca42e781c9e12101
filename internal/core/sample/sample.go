package sample

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Flags are facts about the interval that a sample was taken in.
type Flags uint8

const (
	// Capped: quell applied a hard cap to the task for part of the interval.
	Capped Flags = 1 << iota
	// Throttled: the task ran into its own CPU quota.
	Throttled
	// Stolen: the hypervisor took the CPU away for a significant share.
	Stolen
	// Restarted: the task's counters restarted; they do not continue earlier ones.
	Restarted
	// Split: the task's processes are in different cgroups of another hierarchy. Only its
	// usage is known, and it cannot be capped.
	Split

	// AllFlags has every flag set.
	AllFlags = Capped | Throttled | Stolen | Restarted | Split
)

var flagNames = [...]string{"capped", "throttled", "stolen", "restarted", "split"}

// String lists the set flags joined by "+", "" if there are none.
func (f Flags) String() string {
	var set []string
	for i, n := range flagNames {
		if f&(1<<i) != 0 {
			set = append(set, n)
		}
	}
	return strings.Join(set, "+")
}

// ParseFlags is the inverse of String.
func ParseFlags(s string) (Flags, error) {
	var f Flags
	if s == "" {
		return 0, nil
	}
	for part := range strings.SplitSeq(s, "+") {
		i := slices.Index(flagNames[:], part)
		if i < 0 {
			return 0, fmt.Errorf("flag %q: want some of %s", part, strings.Join(flagNames[:], ", "))
		}
		f |= 1 << i
	}
	return f, nil
}

// Extra names an optional column of a sample.
type Extra uint8

// The extras. Counts are for the interval, seconds are summed over CPUs.
const (
	Cycles         Extra = iota // CPU cycles, reference or core: Variant says which
	Instructions                // retired
	LLCMisses                   // last-level cache misses; on AMD those of the L2 cache
	Transactions                // counted by the application itself
	Syscalls                    // system calls entered
	WaitOther                   // s runnable while the CPU ran another cgroup
	WaitSelf                    // s runnable while the CPU ran the task itself
	WaitThrottled               // s throttled by its own quota
	Wakeups                     // times a thread became runnable; from schedstat: times a thread started to run
	Threads                     // at the end of the interval
	CPUStall                    // share of the interval in which some thread waited for a CPU (PSI's some)
	IOOps                       // requests to disks
	IOBytes                     // bytes of those requests
	IOTime                      // s that those requests took, summed
	NetPackets                  // packets that left interfaces with queues
	NetBytes                    // bytes handed to those interfaces
	NetWait                     // s that those packets waited in their queues, summed
	NetRetransmits              // TCP segments that were retransmitted
	NetQueued                   // packets handed to those interfaces, including those that never left
	StolenShare                 // share of the machine's CPU time that the hypervisor took, 0..1
	WaitNiced                   // s, part of WaitOther: waits of threads that are niced or SCHED_IDLE, which ask to be served last
	numExtras

	noExtra = numExtras // for a signal that has no such extra
)

var extraNames = [numExtras]string{"cycles", "instructions", "llc_misses", "transactions", "syscalls",
	"wait_other", "wait_self", "wait_throttled", "wakeups", "threads", "cpu_stall",
	"io_ops", "io_bytes", "io_time", "net_packets", "net_bytes", "net_wait", "net_resent", "net_queued", "stolen_share", "wait_niced"}

func (e Extra) String() string { return extraNames[e] }

// AllExtras returns every extra in column order.
func AllExtras() []Extra {
	all := make([]Extra, numExtras)
	for i := range all {
		all[i] = Extra(i)
	}
	return all
}

// Extras holds the optional columns that were measured. The zero value holds none. A
// value that was not measured is absent, never 0.
type Extras struct {
	set    uint32
	values [numExtras]float64
}

// Set records a value.
func (x *Extras) Set(e Extra, v float64) { x.set |= 1 << e; x.values[e] = v }

// Get returns a value and whether it was measured.
func (x *Extras) Get(e Extra) (float64, bool) {
	if x.set&(1<<e) == 0 {
		return 0, false
	}
	return x.values[e], true
}

// Len returns how many were measured.
func (x *Extras) Len() int { return bits.OnesCount32(x.set) }

// Merge copies every value that y has into x.
func (x *Extras) Merge(y *Extras) {
	for e := range numExtras {
		if v, ok := y.Get(e); ok {
			x.Set(e, v)
		}
	}
}

// Sample is one task's cost and CPU usage over one sampling interval. It is the same on
// the wire, in a trace, in the store and in the lab (CPI², section 3.1).
type Sample struct {
	TS       Millis // end of the interval
	Machine  string
	Job      JobName
	Task     TaskName
	Platform Platform
	Signal   SignalName
	Variant  string // what was counted, e.g. "ref-cycles"; never mixed in a spec
	Class    Class
	CPU      float32 // CPU-s/s
	Cost     float32 // in the signal's unit; NaN if only the usage is known
	Coverage float32 // counted share of the interval, 0..1
	Flags    Flags
	Extras   Extras
	// Served are the tasks that the signal's queue served while the task waited in it,
	// the longest first; nil if that was not counted. The part of the wait that is in
	// none of them is not attributed to any task.
	Served []Served
}

// Served is how long the queue served one other task while a task waited in it.
type Served struct {
	By   TaskName // "(other)" for what ran outside any task
	Time float64  // s, summed over the task's threads, requests or packets that waited
	// Fair is the share to which By's weight entitles it of the time in which the task
	// wanted to be served, 0..1; 0 if that is not known.
	Fair float64
}
