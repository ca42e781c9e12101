package blockio

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/sample"
)

// Variant is what is counted, part of a spec's key.
const Variant = "bpf"

// perOp is how many bytes weigh as much as one more request, in the pressure:
// a disk's time is spent on requests as well as on bytes (as the kernel's own
// linear model of a disk has it, block/blk-iocost.c).
const perOp = 64 << 10

// maxCgroups is how many cgroups are counted at once in a window; the requests
// of further ones are in Lost.
const maxCgroups = 16 << 10

var (
	errOpen    = errors.New("start window: one is open already")
	errNotOpen = errors.New("stop window: none is open")
)

// Source is the counter.Source of the I/O signal. Costs are in seconds per
// request, Rate in requests per second.
type Source struct {
	k      *kernel
	tasks  map[sample.TaskKey]*followed
	number map[uint64]int // small numbers for the disks seen
	inOpen bool
	began  time.Time
	lost   uint64
	others counter.Reading
	beyond disks // of others
}

type followed struct {
	target counter.Target
	ids    []uint64 // the cgroups that are the task's in this window; nil: not counted
	sum    done
	disks  // used since it is followed
}

// disks are those that somebody used, by their small numbers.
type disks struct {
	known sample.Set
	more  bool // also some that are not told
}

// done is what a task, or all others, had done.
type done struct {
	ops, bytes uint64
	took       time.Duration
}

// Open loads the programs, or gives a *counter.NotSupportedError.
func Open() (*Source, error) {
	k, err := loadKernel(maxCgroups)
	if err != nil {
		return nil, refusal(err)
	}
	// A kernel or a sandbox may allow loading and refuse the rest.
	if err := errors.Join(k.open(), k.detach()); err != nil {
		return nil, refusal(errors.Join(err, k.close()))
	}
	return &Source{k: k, tasks: map[sample.TaskKey]*followed{}, number: map[uint64]int{}}, nil
}

// Signal implements counter.Source.
func (s *Source) Signal() sample.SignalName { return sample.IO }

// Variant implements counter.Source.
func (s *Source) Variant() string { return Variant }

// Lost counts the requests, since Open, that could not be counted.
func (s *Source) Lost() uint64 { return s.lost }

// Others is what the last window counted outside of all tasks.
func (s *Source) Others() counter.Reading { return s.others }

// Add implements counter.Source. A cgroup that is made below the task's in an
// open window counts as another task's until that window's end.
func (s *Source) Add(t counter.Target) error {
	if s.tasks[t.Key] != nil {
		return fmt.Errorf("add %s: already followed", t.Key)
	}
	s.tasks[t.Key] = &followed{target: t}
	return nil
}

// Start implements counter.Source.
func (s *Source) Start() error {
	if s.inOpen {
		return errOpen
	}
	claims := make([]counter.Claim[*followed], 0, len(s.tasks))
	for _, t := range s.tasks {
		t.ids, t.sum = nil, done{}
		c, ok := counter.ClaimOf(&t.target, t)
		if !ok {
			continue // what is left out would count as a neighbour
		}
		claims = append(claims, c)
	}
	for id, t := range counter.Assign(claims) {
		t.ids = append(t.ids, id)
	}
	if err := s.k.open(); err != nil {
		return fmt.Errorf("start window: %w", err)
	}
	s.inOpen, s.began = true, time.Now()
	return nil
}

// Stop implements counter.Source.
func (s *Source) Stop(_ counter.CPUTime, yield func(sample.TaskKey, counter.Reading)) error {
	if !s.inOpen {
		return errNotOpen
	}
	s.inOpen = false
	wall := time.Since(s.began)
	if err := s.k.detach(); err != nil {
		return fmt.Errorf("stop window: %w", err)
	}
	owners := map[uint64]*followed{}
	for _, t := range s.tasks {
		for _, id := range t.ids {
			owners[id] = t
		}
	}
	var others done
	err := s.k.each(func(id uint64, d *blockioDone) {
		if t := owners[id]; t != nil {
			s.add(&t.sum, &t.disks, d)
		} else {
			s.add(&others, &s.beyond, d)
		}
	})
	s.lost = s.k.lost()
	if err != nil {
		return fmt.Errorf("stop window: %w", err)
	}
	s.others = others.reading(wall, s.beyond)
	for key, t := range s.tasks {
		if t.ids != nil {
			yield(key, t.sum.reading(wall, t.disks))
		}
	}
	return nil
}

// Remove implements counter.Source.
func (s *Source) Remove(key sample.TaskKey, _ time.Duration) (counter.Reading, bool) {
	t := s.tasks[key]
	if t == nil {
		return counter.Reading{}, false
	}
	delete(s.tasks, key)
	if !s.inOpen || t.ids == nil {
		return counter.Reading{}, false
	}
	for _, id := range t.ids {
		d := s.k.of(id)
		s.add(&t.sum, &t.disks, &d)
	}
	return t.sum.reading(time.Since(s.began), t.disks), true
}

// add takes in what one cgroup had done.
func (s *Source) add(sum *done, used *disks, d *blockioDone) {
	sum.ops += d.Ops
	sum.bytes += d.Bytes
	sum.took += time.Duration(min(d.Ns, math.MaxInt64))
	used.more = used.more || d.More > 0
	for _, disk := range d.Disks {
		if disk == 0 {
			break
		}
		n, known := s.number[disk]
		if !known {
			n = len(s.number)
			s.number[disk] = n
		}
		used.known = used.known.With(n)
	}
}

// reading is the reading of a window that took wall.
func (d *done) reading(wall time.Duration, used disks) counter.Reading {
	r := counter.Reading{Cost: math.NaN(), Coverage: 1, Reach: used.known}
	switch {
	case used.more:
		r.Reach = nil
	case used.known == nil:
		r.Reach = sample.Set{} // it used no disk: can hurt nobody
	}
	if wall <= 0 {
		return r
	}
	r.Rate = float64(d.ops) / wall.Seconds()
	r.Pressure = (float64(d.ops) + float64(d.bytes)/perOp) / wall.Seconds()
	r.Extras.Set(sample.IOOps, float64(d.ops))
	r.Extras.Set(sample.IOBytes, float64(d.bytes))
	r.Extras.Set(sample.IOTime, d.took.Seconds())
	if d.ops > 0 {
		r.Cost = d.took.Seconds() / float64(d.ops)
	}
	return r
}

// Close implements counter.Source.
func (s *Source) Close() error { return s.k.close() }

// CapBlockIO is the name of what Capability looks for.
const CapBlockIO = "block I/O eBPF"

// Capability loads and attaches the programs once.
func Capability() host.Capability {
	s, err := Open()
	if err == nil {
		err = s.Close()
	}
	return counter.CapabilityOf(CapBlockIO, "requests to disks are counted by task", err)
}
