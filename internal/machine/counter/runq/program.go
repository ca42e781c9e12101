package runq

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
)

// Program counts with eBPF. It is a counter.Source.
type Program struct {
	k       *bpfPrograms
	tasks   map[sample.TaskKey]*monitored
	free    []uint32             // slots
	serial  uint32               // of the last owner
	owned   map[uint64]runqOwner // what the kernel's map holds
	keys    []sample.TaskKey     // by slot, of the tasks that are followed since the window began
	now     []record             // of the task that is being read
	open    bool
	dropped uint64
	crowded []sample.TaskKey

	account      account
	unattributed time.Duration
	refused      uint64
}

type monitored struct {
	target counter.Target
	owner  runqOwner
	base   []record // at the window's start
	counts bool     // it is counted in this window
}

// oldest is the first kernel with pointers to functions in programs and, on arm64, with compare-and-swap.
const oldest = "Linux 5.13 or newer, 5.18 on arm64, with BTF"

// openProgram can make the programs do without features that some kernels lack.
func openProgram(tasks int, w options) (*Program, error) {
	k, err := bpf.Load(func(unserved bool) (*bpfPrograms, error) {
		w.served = w.served || unserved
		return loadPrograms(tasks, w)
	})
	if err == nil {
		// A kernel or a sandbox may allow loading and refuse the rest: try it here, while
		// there is still a fallback.
		if err = errors.Join(k.open(), k.begin(), k.detach()); err != nil {
			err = errors.Join(err, k.close())
		}
	}
	if err != nil {
		return nil, bpf.NotSupported("run queue by eBPF", oldest, err)
	}
	p := &Program{k: k, tasks: map[sample.TaskKey]*monitored{}, owned: map[uint64]runqOwner{}, keys: make([]sample.TaskKey, tasks+1)}
	for slot := uint32(tasks); slot > 0; slot-- {
		p.free = append(p.free, slot)
	}
	return p, nil
}

// Info implements counter.Source. Some kernels do not allow to report served tasks. A
// task takes memory, not descriptors.
func (p *Program) Info() counter.Info {
	return counter.Info{Signal: signal, Variant: VariantBPF, Accounts: p.k.served != nil, CountsLosses: true, MaxTasks: len(p.tasks) + len(p.free)}
}

// Totals implements counter.Source. Lost are the waits of followed tasks that could not be
// noted, above all those of threads that were moved into the task in an open window, and
// the windows in which a task was not counted because its cgroups were not known or did
// not fit. Unattributed is the part of the tasks' waits behind others that is in
// no Reading's Served: time lost to interrupts and the hypervisor if the kernel
// accounts that, slices that a CPU no longer remembered when the wait ended, and
// refused slices. PairsDropped are the slices of waits that had no place among the pairs
// of their CPU.
func (p *Program) Totals() counter.Totals {
	return counter.Totals{Lost: p.dropped, PairsDropped: p.refused, Unattributed: p.unattributed, Crowded: p.crowded}
}

// SetCPUs implements counter.Source: all possible CPUs are counted.
func (p *Program) SetCPUs(sample.Set) {}

// Add implements counter.Source. It takes effect when a window is opened, which is also
// when Target.Below is called.
func (p *Program) Add(t counter.Target) error {
	if p.tasks[t.Key] != nil {
		return fmt.Errorf("%s: %w", t.Dir, errFollowed)
	}
	if len(p.free) == 0 {
		return fmt.Errorf("%s: %w: %d", t.Dir, ErrFull, len(p.tasks))
	}
	slot := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.serial++
	p.tasks[t.Key] = &monitored{target: t, owner: runqOwner{Slot: slot, Serial: p.serial}}
	return nil
}

// Remove implements counter.Source. Unfinished waits are not in the reading. It has no cost: the waits
// are those up to now, and the CPU time may be that of the window's start. It does not say which tasks
// were served either: that is in the tables of all CPUs, and many tasks may end at once.
func (p *Program) Remove(key sample.TaskKey, _ time.Duration) (counter.Reading, bool) {
	t := p.tasks[key]
	if t == nil {
		return counter.Reading{}, false
	}
	var r counter.Reading
	counted := false
	if p.open {
		r, counted = p.reading(t, nil, 0, false)
	}
	for id, o := range p.owned {
		if o == t.owner {
			// If it fails the cgroup has an owner that is not read, until the next
			// window removes it.
			if p.k.deleteOwner(id) == nil {
				delete(p.owned, id)
			}
		}
	}
	delete(p.tasks, key)
	p.free = append(p.free, t.owner.Slot)
	return r, counted
}

// Start implements counter.Source.
func (p *Program) Start() error {
	if p.open {
		return counter.ErrOpen
	}
	unknown, crowded, err := p.setOwners()
	if err != nil {
		return fmt.Errorf("start window: %w", err)
	}
	if err := errors.Join(p.k.renew(), p.k.open()); err != nil {
		return fmt.Errorf("start window: %w", errors.Join(err, p.k.detach()))
	}
	clear(p.keys)
	for key, t := range p.tasks {
		t.counts = false
		if unknown[t.owner] {
			p.dropped++
			continue
		}
		// A crowded task may be served while others wait, but what of its own cgroups had no
		// room would count as its neighbour.
		p.keys[t.owner.Slot] = key
		if crowded[t.owner] {
			p.crowded = append(p.crowded, key)
			p.dropped++
			continue
		}
		if t.base, err = p.k.read(t.base[:0], t.owner.Slot); err != nil {
			return errors.Join(fmt.Errorf("start window: %w", err), p.k.detach())
		}
		t.counts = true
	}
	if err := p.k.begin(); err != nil {
		return fmt.Errorf("start window: %w", err)
	}
	p.open = true
	return nil
}

// setOwners brings the kernel's map in line with the followed tasks. It returns the owners
// that cannot be counted because not all of their cgroups are known, or fit: what is left out
// would count as a neighbour.
func (p *Program) setOwners() (unknown, crowded map[runqOwner]bool, err error) {
	unknown = map[runqOwner]bool{}
	claims := make([]counter.Claim[runqOwner], 0, len(p.tasks))
	for _, t := range p.tasks {
		c, ok := counter.ClaimOf(&t.target, t.owner)
		if !ok {
			unknown[t.owner] = true
			continue
		}
		claims = append(claims, c)
	}
	p.crowded = p.crowded[:0]
	want, crowded := counter.AssignUpTo(claims, p.k.room)
	for id := range p.owned {
		if _, ok := want[id]; !ok {
			if err := p.k.deleteOwner(id); err != nil {
				return nil, nil, fmt.Errorf("remove cgroup owner: %w", err)
			}
			delete(p.owned, id)
		}
	}
	for id, o := range want {
		if p.owned[id] == o {
			continue
		}
		switch err := p.k.setOwner(id, o); {
		case errors.Is(err, unix.E2BIG):
			crowded[o] = true
		case err != nil:
			return nil, nil, fmt.Errorf("set cgroup owner: %w", err)
		default:
			p.owned[id] = o
		}
	}
	return unknown, crowded, nil
}

// Stop implements counter.Source. Unfinished waits count up to here.
func (p *Program) Stop(w counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	if !p.open {
		return counter.ErrNotOpen
	}
	p.open = false
	if err := p.k.settleWaits(); err != nil {
		return fmt.Errorf("stop window: %w", errors.Join(err, p.k.detach()))
	}
	// Still attached, so that usage and waits are of the same moment.
	pairs, refused, err := p.k.pairs(p.account.pairs[:0])
	if err != nil {
		return fmt.Errorf("stop window: %w", errors.Join(err, p.k.detach()))
	}
	p.account.settle(pairs)
	p.refused = refused
	for key, t := range p.tasks {
		used, known := w.CPU(key)
		if r, ok := p.reading(t, &p.account, used, known); ok {
			yield(key, r)
		}
		t.counts = false
	}
	p.dropped += p.k.missing()
	if err := p.k.detach(); err != nil {
		return fmt.Errorf("stop window: %w", err)
	}
	return nil
}

func (p *Program) reading(t *monitored, a *account, cpu time.Duration, known bool) (counter.Reading, bool) {
	if !t.counts {
		return counter.Reading{}, false
	}
	var err error
	if p.now, err = p.k.read(p.now[:0], t.owner.Slot); err != nil {
		return counter.Reading{}, false
	}
	sum := since(p.now, t.base)
	p.dropped += uint64(sum.dropped)
	r := sum.reading(cpu, known)
	if p.k.served != nil && a != nil {
		var known uint64
		r.Served, known = a.servedFor(t.owner.Slot, sum.other, p.keys)
		p.unattributed += time.Duration(sum.other - known)
	}
	return r, true
}

// Close implements counter.Source.
func (p *Program) Close() error { return p.k.close() }
