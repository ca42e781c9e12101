package bpf

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Programs are loaded programs that keep an R for every cgroup: the Kernel of a signal.
// They are attached only while a window is open.
type Programs[R any] struct {
	work     *ebpf.Map
	lost     *ebpf.Variable
	programs []*ebpf.Program
	unload   func() error
	hooks    Hooks
	parts    Parts
	service  *Service // nil: served cgroups are not reported
	opened   *ebpf.Variable
	seen     seen
}

// seen is when the programs were attached, but for short pauses: what they noted before may be over, and
// what is at its place now may be something else.
type seen struct {
	since, until time.Duration // CLOCK_MONOTONIC
	attached     bool          // until is not yet known
}

const (
	// Little begins in so short a time between two windows.
	shortPause = time.Second
	// What was noted so long before a window is rather of something that was dropped than of what has
	// waited since.
	mostBefore = 10 * time.Second
)

// open returns from when on what was noted is relied on in a window that opens now.
func (s *seen) open(now time.Duration) time.Duration {
	if s.until == 0 || now-s.until > shortPause {
		s.since = now
	}
	s.attached = true
	return max(s.since, now-mostBefore)
}

func (s *seen) end(now time.Duration) {
	if s.attached {
		s.attached, s.until = false, now
	}
}

// Parts holds the data of programs that include made.h: the cgroups that have no account of their own,
// since they are part of one that has, and their number, 0 only if there are none. The zero value has none.
type Parts struct {
	Of     *ebpf.Map
	Number *ebpf.Variable
	Made   []*ebpf.Program // note cgroups that are made while they are attached
}

// MaxMade is the number of cgroups made in an open window that are known at once.
const MaxMade = 4 << 10

// Clear forgets all parts.
func (p *Parts) Clear() error {
	if p.Of == nil {
		return nil
	}
	var n uint32
	if err := p.Number.Get(&n); err != nil || n == 0 {
		return err
	}
	if err := Clear[uint64](p.Of); err != nil {
		return err
	}
	return p.Number.Set(uint32(0))
}

// put adds parts: the cgroups that are another one's.
func (p *Parts) put(cgroups map[uint64]uint64) error {
	var keys, of []uint64
	for id, whole := range cgroups {
		if id != whole {
			keys, of = append(keys, id), append(of, whole)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return errors.Join(putAll(p.Of, keys, of), p.Number.Set(uint32(len(keys))))
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

// Dating makes Open set opened, a uint64 of CLOCK_MONOTONIC: what was noted before that is not relied on.
func (p *Programs[R]) Dating(opened *ebpf.Variable) { p.opened = opened }

// NewPrograms returns programs that are attached in the order given. They keep an R in work,
// by sample.CgroupID, and in lost, a uint64, how much had no room there. unload closes
// all of that.
func NewPrograms[R any](work *ebpf.Map, lost *ebpf.Variable, parts Parts, unload func() error, programs ...*ebpf.Program) *Programs[R] {
	return &Programs[R]{work: work, lost: lost, parts: parts, unload: unload, programs: programs}
}

// Open implements Kernel.
func (p *Programs[R]) Open(cgroups map[uint64]uint64, pairs [][2]uint64) error {
	if err := errors.Join(Clear[uint64](p.work), p.parts.Clear()); err != nil {
		return err
	}
	room := maps.Keys(cgroups)
	if p.service != nil {
		// By task, so that a task's cgroups take no more of the pairs than one.
		if err := errors.Join(p.parts.put(cgroups), p.service.clear()); err != nil {
			return err
		}
		room = maps.Values(cgroups)
		keys := make([]pairKey, len(pairs))
		for i, pair := range pairs {
			keys[i] = pairKey{pair[0], pair[1]}
		}
		if err := makeRoom[pairKey, uint64](p.service.Pairs, keys); err != nil {
			return err
		}
	}
	if err := makeRoom[uint64, R](p.work, slices.Compact(slices.Sorted(room))); err != nil {
		return err
	}
	if p.opened != nil {
		if err := p.opened.Set(uint64(p.seen.open(time.Duration(host.Monotonic())))); err != nil {
			return fmt.Errorf("set start of window: %w", err)
		}
	}
	return p.hooks.Attach(slices.Concat(p.parts.Made, p.programs)...)
}

// makeRoom puts zero values into a map: a key that is there is found also when others have
// filled the map.
func makeRoom[K comparable, V any](m *ebpf.Map, keys []K) error {
	if len(keys) == 0 {
		return nil
	}
	return putAll(m, keys, make([]V, len(keys)))
}

func putAll[K comparable, V any](m *ebpf.Map, keys []K, values []V) error {
	_, err := m.BatchUpdate(keys, values, nil)
	if errors.Is(err, ebpf.ErrNotSupported) { // before 5.6
		for i := range keys {
			if err = m.Put(&keys[i], &values[i]); err != nil {
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
func (p *Programs[R]) Detach() error {
	p.seen.end(time.Duration(host.Monotonic()))
	return p.hooks.Detach()
}

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
