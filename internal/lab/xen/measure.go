package xen

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"time"
)

// Domain says what a domain did while a trace was recorded. Shares are of the
// virtual CPUs' time in the trace; counts and rates are the trace's.
type Domain struct {
	ID    int
	VCPUs int
	Span  time.Duration // of the trace, from its first record to its last

	// Running, Runnable and Blocked are shares of the virtual CPUs' known time:
	// the paper's CPU, waiting and blocked per cent. They add up to 1.
	Running, Runnable, Blocked float64
	// Executions is how often a virtual CPU was put on a CPU, Preemptions how
	// often it was taken off while it wanted to run on.
	Executions, Preemptions int
	// Events is the number of trace records of the domain's entries to the
	// hypervisor (hypercalls, faults, privileged operations; HVM exits): a
	// proxy for the paper's "VMM events". EventChannel is how many of those
	// were operations on event channels.
	Events, EventChannel int
	// Grants is the number of its pages that another domain mapped: a proxy for
	// the paper's I/O pages exchanged, which Xen flipped then. Pages that are
	// copied (grant copy) leave no record.
	Grants int
}

// PerSecond makes a count a rate.
func (d *Domain) PerSecond(n int) float64 {
	if d.Span <= 0 {
		return 0
	}
	return float64(n) / d.Span.Seconds()
}

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

// change is one of a virtual CPU's state.
type change struct {
	at       uint64 // cycles
	who      vcpu
	from, to int
}

// Measure reads a trace of a machine whose time stamp counter has so many
// cycles a second (cpu_mhz of xl info; traces do not say). Domains come by id;
// the idle domain is left out.
func Measure(r io.Reader, hz float64) ([]Domain, error) {
	if !(hz > 0) {
		return nil, errors.New("measure trace: cycles per second must be more than 0")
	}
	m := meter{domains: map[int]*Domain{}, on: map[int]int{}}
	if err := Decode(r, func(r *Record) error { m.take(r); return nil }); err != nil {
		return nil, err
	}
	return m.domainList(hz), nil
}

type meter struct {
	changes     []change
	domains     map[int]*Domain
	on          map[int]int // domain by physical CPU, where it is known
	first, last uint64
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
	case r.Event&runstateMask == eventRunstate && len(r.Extra) > 0:
		m.change(r)
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

// change takes in that a virtual CPU goes from one state to another.
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

// states adds up how long each domain's virtual CPUs were in each state, in
// cycles, from their first change on. The trace has the changes in order for
// each physical CPU only, so they are sorted first.
func (m *meter) states() map[int]*[4]uint64 {
	slices.SortStableFunc(m.changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	sums := map[int]*[4]uint64{}
	newest := map[vcpu]change{}
	for _, c := range m.changes {
		if sums[c.who.domain] == nil {
			sums[c.who.domain] = &[4]uint64{}
		}
		if before, known := newest[c.who]; known {
			sums[c.who.domain][c.from] += c.at - before.at
		} else {
			m.domain(c.who.domain).VCPUs++
		}
		newest[c.who] = c
	}
	for who, c := range newest {
		sums[who.domain][c.to] += m.last - c.at
	}
	return sums
}

func (m *meter) domainList(hz float64) []Domain {
	span := time.Duration(float64(m.last-m.first) / hz * float64(time.Second))
	sums := m.states()
	var all []Domain
	for _, d := range m.domains {
		if d.ID >= idleDomain {
			continue
		}
		d.Span = span
		if s := sums[d.ID]; s != nil {
			if sum := float64(s[running] + s[runnable] + s[blocked]); sum > 0 {
				d.Running, d.Runnable, d.Blocked = float64(s[running])/sum, float64(s[runnable])/sum, float64(s[blocked])/sum
			}
		}
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b Domain) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
