package xen

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"slices"
	"time"
)

// Trace holds the activity of a machine and its domains while xentrace recorded: the
// eight measures of the paper's section III, as far as Xen still has them.
type Trace struct {
	Span time.Duration // from the first record to the last
	// Switches is how often a CPU was given to another virtual CPU, including idle
	// ones: the paper's "VM switches".
	Switches int
	// Lost is the number of records that had no room: the counts are too low.
	Lost    int
	Domains []Domain // by id, without the idle one
}

// PerSecond converts a count to a rate.
func (t *Trace) PerSecond(n int) float64 {
	if t.Span <= 0 {
		return 0
	}
	return float64(n) / t.Span.Seconds()
}

// Domain returns a domain by its id; nil if it has no recorded activity.
func (t *Trace) Domain(id int) *Domain {
	for i := range t.Domains {
		if t.Domains[i].ID == id {
			return &t.Domains[i]
		}
	}
	return nil
}

// Domain holds the activity of a domain in a trace. Counts are for the whole trace.
type Domain struct {
	ID int
	// Shares are the mean over its virtual CPUs; VCPUs has those of each, by number.
	Shares
	VCPUs []Shares
	// Executions is how often a virtual CPU was put on a CPU, Preemptions how often it
	// was taken off while it still wanted to run.
	Executions, Preemptions int
	// Events is the number of trace records of the domain's entries to the hypervisor
	// (hypercalls, faults, privileged operations; HVM exits): a proxy for the paper's
	// "VMM events". EventChannel is the number of those that were operations on event
	// channels.
	Events, EventChannel int
	// Grants is the number of its pages that another domain mapped: a proxy for the
	// paper's I/O pages exchanged, which Xen flipped at that time. Pages that are
	// copied (grant copy) leave no record.
	Grants int
}

// Shares are the shares of a virtual CPU's time in the trace in which it had a CPU,
// waited for one, and had nothing to do: the paper's CPU, waiting and blocked per cent.
// They add up to 1, except for time in which it was offline (paused) or whose records
// were lost.
type Shares struct{ Running, Runnable, Blocked float64 }

// Sum is 1 if a virtual CPU's whole time is accounted for.
func (s Shares) Sum() float64 { return s.Running + s.Runnable + s.Blocked }

// GrantsPerExecution is the paper's pages per execution; 0 without executions.
func (d *Domain) GrantsPerExecution() float64 {
	if d.Executions == 0 {
		return 0
	}
	return float64(d.Grants) / float64(d.Executions)
}

// Runstates of a virtual CPU (xen/include/public/vcpu.h).
const (
	running = iota
	runnable
	blocked
)

type vcpu struct{ domain, number int }

// change is a change of a virtual CPU's state.
type change struct {
	at       uint64 // cycles
	who      vcpu
	from, to int
}

// Measure reads a trace of a machine whose time stamp counter runs at hz (cpu_mhz of xl
// info; traces do not contain it).
func Measure(r io.Reader, hz float64) (*Trace, error) {
	if !(hz > 0) {
		return nil, errors.New("measure trace: cycles per second must be more than 0")
	}
	m := meter{domains: map[int]*Domain{}, on: map[int]int{}}
	if err := Decode(r, func(r *Record) error { m.take(r); return nil }); err != nil {
		return nil, err
	}
	return m.trace(hz), nil
}

type meter struct {
	changes     []change
	domains     map[int]*Domain
	on          map[int]int // domain by physical CPU, if known
	first, last uint64
	lost        int
}

func (m *meter) domain(id int) *Domain {
	d := m.domains[id]
	if d == nil {
		d = &Domain{ID: id}
		m.domains[id] = d
	}
	return d
}

func (m *meter) take(r *Record) {
	if r.TSC != 0 {
		if m.first == 0 || r.TSC < m.first {
			m.first = r.TSC
		}
		m.last = max(m.last, r.TSC)
	}
	class := r.Event & classMask
	switch {
	case r.Event&runstateMask == eventRunstate && len(r.Extra) > 0 && r.TSC != 0:
		m.change(r)
	case r.Event == eventLost && len(r.Extra) > 0:
		m.lost += int(r.Extra[0])
	case r.Event == eventGrantMap && len(r.Extra) > 0:
		m.domain(int(r.Extra[0])).Grants++
	case class == classPV || class == classHVM:
		id, known := m.on[r.CPU]
		if !known {
			return // before the first switch on this CPU
		}
		d := m.domain(id)
		d.Events++
		if r.Event&^0x100 == hypercallV2 && len(r.Extra) > 0 {
			if op := r.Extra[0] & opMask; op == evtchnOp || op == evtchnOpOld {
				d.EventChannel++
			}
		}
	}
}

// change records the transition of a virtual CPU from one state to another.
func (m *meter) change(r *Record) {
	c := change{r.TSC, vcpu{int(r.Extra[0] >> 16), int(r.Extra[0] & 0xffff)}, int(r.Event >> 8 & 3), int(r.Event >> 4 & 3)}
	m.changes = append(m.changes, c)
	d := m.domain(c.who.domain)
	switch {
	case c.to == running:
		d.Executions++
		m.on[r.CPU] = c.who.domain
	case c.from == running:
		delete(m.on, r.CPU)
		if c.to == runnable {
			d.Preemptions++
		}
	}
}

// states sums the time of each virtual CPU in each state, in cycles of the whole trace.
// Before its first change it was in the state which that change left. The trace has the
// changes in order for each physical CPU only, so they are sorted first.
func (m *meter) states() map[vcpu]*[4]uint64 {
	slices.SortStableFunc(m.changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	sums := map[vcpu]*[4]uint64{}
	newest := map[vcpu]change{}
	for _, c := range m.changes {
		before, known := newest[c.who]
		if !known {
			sums[c.who] = &[4]uint64{}
			before = change{at: m.first, to: c.from}
		}
		// Not c.from: if records were lost the two differ, and the time continues from
		// the last known state.
		sums[c.who][before.to] += c.at - before.at
		newest[c.who] = c
	}
	for who, c := range newest {
		sums[who][c.to] += m.last - c.at
	}
	return sums
}

func (m *meter) trace(hz float64) *Trace {
	t := &Trace{Span: time.Duration(float64(m.last-m.first) / hz * float64(time.Second)), Lost: m.lost}
	whole := float64(m.last - m.first)
	sums := m.states()
	if whole == 0 {
		return t // a trace of one instant has no shares
	}
	for _, who := range slices.SortedFunc(maps.Keys(sums), func(a, b vcpu) int {
		return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.number, b.number))
	}) {
		s, d := sums[who], m.domain(who.domain)
		d.VCPUs = append(d.VCPUs, Shares{float64(s[running]) / whole, float64(s[runnable]) / whole, float64(s[blocked]) / whole})
	}
	for _, id := range slices.Sorted(maps.Keys(m.domains)) {
		d := m.domains[id]
		t.Switches += d.Executions
		if id >= idleDomain {
			continue
		}
		n := float64(len(d.VCPUs))
		for _, v := range d.VCPUs {
			d.Running, d.Runnable, d.Blocked = d.Running+v.Running/n, d.Runnable+v.Runnable/n, d.Blocked+v.Blocked/n
		}
		t.Domains = append(t.Domains, *d)
	}
	return t
}
