package audit

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Switch is a thread's switch onto a CPU or off it. Thread 0 is the idle thread.
type Switch struct {
	At  int64 // ns
	CPU int
	TID int
	On  bool
	// Preempted says that a thread that goes off still wants to run.
	Preempted bool
}

// Placed is a part with its placement: a set for each thread, or one for all, or none
// if it was not placed.
type Placed struct {
	Name    string
	Sets    []sample.Set
	Threads []int
}

// Ledger sums up switches. They must arrive in order of time; it reads no clock.
type Ledger struct {
	core  map[int]int // CPU to the number of its core
	cores [][]int     // CPUs of each

	from, now int64
	current   map[int]int // thread on a CPU; no entry: unknown
	threads   map[int]*thread
	part      map[int]int // tracked thread to part
	doubled   []int64     // ns, by part
	Lost      uint64
}

// thread is the state of one thread. Threads that are not tracked have one too, since a
// part may own them when it is asked.
type thread struct {
	on     map[int]int64 // CPU to ns run there
	cpu    int           // where it ran last, -1: unknown
	since  int64         // when it went on the CPU, -1: it is off
	onCPU  bool          // on its CPU, or preempted there
	moves  int
	across int // moves between cores
	path   []result.Stay
}

// NewLedger starts a ledger at an instant.
func NewLedger(top host.Topology, at int64) *Ledger {
	l := &Ledger{core: map[int]int{}, from: at, now: at, current: map[int]int{}, threads: map[int]*thread{}, part: map[int]int{}}
	for _, c := range top.CPUs {
		if _, known := l.core[c.ID]; known {
			continue
		}
		cpus := c.Siblings.Numbers()
		if len(cpus) == 0 {
			cpus = []int{c.ID}
		}
		for _, n := range cpus {
			l.core[n] = len(l.cores)
		}
		l.cores = append(l.cores, cpus)
	}
	return l
}

// Track sets the threads, by part, whose sharing of cores is counted. Later calls with the
// same parts add threads.
func (l *Ledger) Track(parts []Placed) {
	if l.doubled == nil {
		l.doubled = make([]int64, len(parts))
	}
	for i, p := range parts {
		for _, tid := range p.Threads {
			l.part[tid] = i
		}
	}
}

func (l *Ledger) thread(tid int) *thread {
	t := l.threads[tid]
	if t == nil {
		t = &thread{on: map[int]int64{}, cpu: -1, since: -1}
		l.threads[tid] = t
	}
	return t
}

// moveTo records that a thread is on a CPU from an instant on.
func (l *Ledger) moveTo(t *thread, cpu int, at int64) {
	if t.cpu == cpu {
		return
	}
	if t.cpu >= 0 {
		t.moves++
		if l.core[t.cpu] != l.core[cpu] {
			t.across++
		}
	}
	t.cpu = cpu
	if len(t.path) < result.MostStays {
		t.path = append(t.path, result.Stay{At: time.Duration(at - l.from), CPU: cpu})
	}
}

// Add processes the next switch.
func (l *Ledger) Add(s Switch) {
	l.advance(s.At)
	t := l.thread(s.TID)
	if s.On {
		if old, ok := l.current[s.CPU]; ok && old != s.TID {
			l.off(old, s.CPU, s.At, false) // the record of its end was lost
		}
		l.current[s.CPU] = s.TID
		if s.TID == 0 {
			return // the idle thread is on many CPUs at once
		}
		l.moveTo(t, s.CPU, s.At)
		t.since, t.onCPU = s.At, true
		return
	}
	if _, known := l.current[s.CPU]; !known && s.TID != 0 && t.cpu < 0 {
		l.moveTo(t, s.CPU, l.from) // it is there since the beginning
		t.since = l.from
	}
	l.off(s.TID, s.CPU, s.At, s.Preempted)
	l.current[s.CPU] = -1 // no thread: the next one goes on at once
}

func (l *Ledger) off(tid, cpu int, at int64, preempted bool) {
	t := l.threads[tid]
	if tid <= 0 || t == nil || t.cpu != cpu {
		return
	}
	if t.since >= 0 {
		t.on[cpu] += at - t.since
	}
	t.since, t.onCPU = -1, preempted
}

// advance advances the time to at; all threads stay where they are.
func (l *Ledger) advance(at int64) {
	span := at - l.now
	if span <= 0 {
		return
	}
	l.now = at
	if len(l.part) < 2 {
		return
	}
	sitting := make([][]int, len(l.cores)) // parts on each core
	for tid, part := range l.part {
		if t := l.threads[tid]; t != nil && t.onCPU {
			k := l.core[t.cpu]
			sitting[k] = append(sitting[k], part)
		}
	}
	idle := false
	for _, cpus := range l.cores {
		idle = idle || !slices.ContainsFunc(cpus, func(n int) bool { tid, known := l.current[n]; return !known || tid != 0 })
	}
	if !idle {
		return
	}
	hit := make([]bool, len(l.doubled))
	for _, parts := range sitting {
		if len(parts) < 2 {
			continue
		}
		for _, p := range parts {
			hit[p] = true
		}
	}
	for p, yes := range hit {
		if yes {
			l.doubled[p] += span
		}
	}
}

// Still accounts a thread without a switch in the window: all its run time was on one
// CPU.
func (l *Ledger) Still(tid, cpu int, ran int64) {
	if t := l.thread(tid); t.cpu < 0 && ran > 0 {
		l.moveTo(t, cpu, l.from)
		t.on[cpu] = ran
	}
}

// Ran accounts a look at an instant at a thread that ran for ns since the last look and
// is on a CPU now.
func (l *Ledger) Ran(at int64, tid, cpu int, ns int64) {
	if ns <= 0 {
		return // it may not have run on this CPU at all
	}
	t := l.thread(tid)
	l.moveTo(t, cpu, at)
	t.on[cpu] += ns
}

// numbers returns the number of the core of each CPU, -1 for a CPU that is offline.
func (l *Ledger) numbers() []int {
	var all []int
	for _, cpu := range slices.Sorted(maps.Keys(l.core)) {
		for len(all) < cpu {
			all = append(all, -1) // offline
		}
		all = append(all, l.core[cpu])
	}
	return all
}

// Close ends the window and returns where the threads of each part ran.
func (l *Ledger) Close(at int64, parts []Placed, method string) []result.Audit {
	l.advance(at)
	all := make([]result.Audit, len(parts))
	for i, p := range parts {
		a := result.Audit{Method: method, OnPlace: 1, Lost: l.Lost, Cores: l.numbers()}
		var right, total int64
		for k, tid := range p.Threads {
			t := l.threads[tid]
			if t == nil {
				continue
			}
			if t.since >= 0 {
				t.on[t.cpu] += at - t.since
				t.since = at
			}
			m := result.Migrations{Thread: strconv.Itoa(tid), Logical: t.moves, Physical: t.across}
			if t.moves > 0 {
				m.Path = t.path
			}
			var ran int64
			for cpu, ns := range t.on {
				ran += ns
				m.PerCPU = append(m.PerCPU, make([]float64, max(0, cpu+1-len(m.PerCPU)))...)
				if len(p.Sets) == 0 || p.Sets[min(k, len(p.Sets)-1)].Has(cpu) {
					right += ns
				}
			}
			for cpu, ns := range t.on {
				if ran > 0 {
					m.PerCPU[cpu] = float64(ns) / float64(ran)
				}
			}
			total += ran
			if ran == 0 && t.moves == 0 {
				continue // it slept for the whole window
			}
			a.Migrations = append(a.Migrations, m)
		}
		if total > 0 {
			a.OnPlace = float64(right) / float64(total)
		}
		if span := at - l.from; span > 0 && i < len(l.doubled) {
			a.Doubled = float64(l.doubled[i]) / float64(span)
		}
		all[i] = a
	}
	return all
}
