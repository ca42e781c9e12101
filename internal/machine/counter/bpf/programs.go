package bpf

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// Programs are loaded programs that keep an R for every cgroup: the Kernel of a signal.
// They are attached only while a window is open.
type Programs[R any] struct {
	work     *ebpf.Map
	lost     *ebpf.Variable
	programs []*ebpf.Program
	unload   func() error
	hooks    Hooks
	service  *Service // nil: served cgroups are not reported
}

// Service holds the data of programs that include service.h.
type Service struct {
	Pairs, Places *ebpf.Map
	Refused       *ebpf.Variable
}

// MaxPairs is the number of pairs of cgroups, one of which was served while the other
// waited, that are distinguished in a window.
const MaxPairs = 16 << 10

// Serving makes the programs report served cgroups (Served). It returns them.
func (p *Programs[R]) Serving(s Service) *Programs[R] {
	p.service = &s
	return p
}

// NewPrograms returns programs that are attached in the order given. They keep an R in work,
// by sample.CgroupID, and in lost, a uint64, how much had no room there. unload closes
// all of that.
func NewPrograms[R any](work *ebpf.Map, lost *ebpf.Variable, unload func() error, programs ...*ebpf.Program) *Programs[R] {
	return &Programs[R]{work: work, lost: lost, unload: unload, programs: programs}
}

// Open implements Kernel.
func (p *Programs[R]) Open(cgroups []uint64, pairs [][2]uint64) error {
	if err := Clear[uint64](p.work); err != nil {
		return err
	}
	if p.service != nil {
		if err := p.service.clear(); err != nil {
			return err
		}
		keys := make([]pairKey, len(pairs))
		for i, pair := range pairs {
			keys[i] = pairKey{pair[0], pair[1]}
		}
		if err := makeRoom[pairKey, uint64](p.service.Pairs, keys); err != nil {
			return err
		}
	}
	if err := makeRoom[uint64, R](p.work, cgroups); err != nil {
		return err
	}
	return p.hooks.Attach(p.programs...)
}

// makeRoom puts zero values into a map: a key that is there is found also when others have
// filled the map.
func makeRoom[K comparable, V any](m *ebpf.Map, keys []K) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := m.BatchUpdate(keys, make([]V, len(keys)), nil)
	if errors.Is(err, ebpf.ErrNotSupported) { // before 5.6
		var zero V
		for _, k := range keys {
			if err = m.Put(k, &zero); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("make room in %s: %w", m, err)
	}
	return nil
}

// Detach implements Kernel.
func (p *Programs[R]) Detach() error { return p.hooks.Detach() }

// Each implements Kernel.
func (p *Programs[R]) Each(yield func(cgroup uint64, r *R)) error {
	var id uint64
	var r R
	all := p.work.Iterate()
	for all.Next(&id, &r) {
		yield(id, &r)
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read counts: %w", err)
	}
	return nil
}

// Of implements Kernel.
func (p *Programs[R]) Of(cgroup uint64) (r R) {
	_ = p.work.Lookup(cgroup, &r) // most cgroups did nothing and are not in the map
	return r
}

// Lost implements Kernel.
func (p *Programs[R]) Lost() (n uint64) {
	_ = p.lost.Get(&n) // does not fail, since the map exists
	return n
}

// pairKey is struct pair of service.h.
type pairKey struct{ Waits, By uint64 }

// clear empties the pairs and the places: interfaces come and go.
func (s *Service) clear() error {
	if err := Clear[pairKey](s.Pairs); err != nil {
		return err
	}
	none := make([]byte, s.Places.ValueSize())
	for i := range s.Places.MaxEntries() {
		if err := s.Places.Put(i, none); err != nil {
			return fmt.Errorf("clear %s: %w", s.Places, err)
		}
	}
	return nil
}

// Served implements Kernel.
func (p *Programs[R]) Served(yield func(waits, by uint64, d time.Duration)) (ok bool, err error) {
	if p.service == nil {
		return false, nil
	}
	var key pairKey
	var ns uint64
	all := p.service.Pairs.Iterate()
	for all.Next(&key, &ns) {
		yield(key.Waits, key.By, time.Duration(ns))
	}
	if err := all.Err(); err != nil {
		return true, fmt.Errorf("read pairs: %w", err)
	}
	return true, nil
}

// PairsDropped implements Kernel.
func (p *Programs[R]) PairsDropped() (n uint64) {
	if p.service != nil {
		_ = p.service.Refused.Get(&n) // does not fail, since the map exists
	}
	return n
}

// Programs returns those that a window attaches, for benchmarks of what each costs.
func (p *Programs[R]) Programs() []*ebpf.Program { return p.programs }

// Close implements Kernel.
func (p *Programs[R]) Close() error { return errors.Join(p.Detach(), p.unload()) }
