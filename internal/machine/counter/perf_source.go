package counter

import (
	"errors"
	"math"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Perf is a Source over perf groups in cgroup mode: one group per task and CPU, read as
// a whole, each difference scaled by its own enabled/running. It holds CPUs × events
// file descriptors per task, for cps only in windows. Add returns a *FDLimitError
// when they run out.
//
// In addition to Cost and Coverage a reading has its signal's Extras if every CPU that
// the task ran on was counted.
type Perf struct {
	info   Info // without the descriptors
	fill   func(Reading, total) Reading
	groups *groups
}

// Info implements Source. Missing holds the optional events, or better variants, that
// this machine lacks: one *NotSupportedError each.
func (p *Perf) Info() Info {
	i := p.info
	i.WindowFDs = len(p.groups.cpus) * len(p.groups.events)
	if !p.groups.perWindow {
		i.IdleFDs = i.WindowFDs
	}
	return i
}

// Events returns the events of a group, in the order in which a reading is made of them.
func (p *Perf) Events() []Event {
	var all []Event
	for _, e := range p.groups.events {
		all = append(all, Event{event: e})
	}
	return all
}

// NoteMissing adds to what Info reports as Missing.
func (p *Perf) NoteMissing(err error) { p.info.Missing = append(p.info.Missing, err) }

// Add implements Source. Its errors: host.ErrGone, ErrNoPerfDir, *FDLimitError,
// *NotSupportedError.
func (p *Perf) Add(t Target) error { return p.groups.add(t.Key, t.PerfDir) }

// Remove implements Source. perf keeps its own time, so the given CPU time is not used.
func (p *Perf) Remove(key sample.TaskKey, _ time.Duration) (Reading, bool) {
	sum, counted := p.groups.remove(key)
	if !counted {
		return Reading{}, false
	}
	return p.reading(sum), true
}

// Start implements Source.
func (p *Perf) Start() error { return p.groups.start() }

// Stop implements Source. If another window opens at once, the counters stay on.
func (p *Perf) Stop(end WindowEnd, yield func(sample.TaskKey, Reading)) error {
	var idle func(sample.TaskKey) bool
	if end.CPU != nil {
		idle = func(k sample.TaskKey) bool {
			used, known := end.CPU(k)
			return known && used == 0
		}
	}
	p.groups.linger = end.Next
	return p.groups.stop(idle, func(t *groupTask, sum total) { yield(t.key, p.reading(sum)) })
}

// Totals implements Source: there are none.
func (p *Perf) Totals() Totals { return Totals{} }

// SetCPUs implements Source. New CPUs are counted from the next window on; the state of
// the others stays.
func (p *Perf) SetCPUs(online sample.Set) { p.groups.addCPUs(online) }

// Close implements Source.
func (p *Perf) Close() error {
	p.groups.closeAll()
	return nil
}

func (p *Perf) reading(t total) Reading {
	r := Reading{Cost: math.NaN(), Coverage: t.coverage()}
	if t.restarted {
		r.Flags |= sample.Restarted
	}
	if r.Coverage < leastCoverage {
		r.Err = noCounters(t.enabled, t.running)
		return r
	}
	return p.fill(r, t)
}

// noCounters is ErrNoCounters if events that were on for some time counted in less than the
// least share of it.
func noCounters(enabled, running uint64) error {
	if float64(running) < leastCoverage*float64(enabled) {
		return ErrNoCounters
	}
	return nil
}

// openPerf opens what every perf source needs: groups on CPUs, and the root of the cgroup
// tree that perf uses, to try events in.
func openPerf(sys perfSyscalls, cpus sample.Set, cgroup2 string) (*groups, cgroupDir, error) {
	if cpus.Len() == 0 {
		return nil, cgroupDir{}, errors.New("no CPU given")
	}
	g := newGroups(sys, cpus)
	root, err := g.openRoot(cgroup2)
	return g, root, err
}
