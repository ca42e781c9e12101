package agent

import (
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// reach is the set of shared resources that a task can use, as numbered sets. nil means
// unknown and reaches everything.
type reach struct {
	cpus sample.Set
	near sample.Set // last-level caches, and the memory nodes behind them
}

// in returns the set that matters for a signal's domain.
func (r reach) in(d sample.Domain) sample.Set {
	if d == sample.SharedCPU {
		return r.cpus
	}
	return r.near
}

// reaches computes the reach of a set of CPUs. It keeps the newest result, because
// tasks that are not pinned have the same CPUs. Tasks share the sets, which are never
// modified. The zero value works; it is replaced when the topology changes.
type reaches struct {
	numbers map[int]int // of caches, by the kernel's ids, which may be large
	newest  reach
}

func (rs *reaches) of(t *host.Topology, cpus sample.Set) reach {
	switch {
	case cpus.Len() == 0:
		return reach{}
	case slices.Equal(cpus, rs.newest.cpus):
		return rs.newest
	}
	if rs.numbers == nil {
		rs.numbers = map[int]int{}
		for _, c := range t.CPUs {
			if _, known := rs.numbers[c.LLC.ID]; !known && c.LLC.ID >= 0 {
				rs.numbers[c.LLC.ID] = len(rs.numbers)
			}
		}
	}
	r := reach{cpus: cpus}
	for _, c := range t.CPUs {
		if n, known := rs.numbers[c.LLC.ID]; known && cpus.Has(c.ID) {
			r.near = r.near.With(n)
		}
	}
	if r.near != nil { // else no cache is known, and everything is reachable
		for _, c := range t.CPUs {
			if cpus.Has(c.ID) && c.Node >= 0 {
				r.near = r.near.With(len(rs.numbers) + c.Node)
			}
		}
	}
	rs.newest = r
	return r
}
