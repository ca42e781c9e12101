package agent

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// source implements counter.Source: a guest's cost as of the window's end.
type source struct {
	m             *machine
	signal        sample.SignalName
	start, finish error // of Start and Stop
	adding        error
	added         int // calls of Add
	open          bool
	on            bool // it counts, also while it lingers
	targets       map[sample.TaskKey]*followed
	order         []sample.TaskKey                      // of targets, at the last stop
	change        func(path string, r *counter.Reading) // modifies the reading of a guest
	starting      func()                                // called in Start
	shared        []host.Device                         // by any two tasks
	info          counter.Info                          // the abilities, apart from the signal and the variant
	totals        counter.Totals
}

type followed struct {
	*guest
	counting bool
}

func (m *machine) source(s sample.SignalName) *source {
	return &source{m: m, signal: s, targets: map[sample.TaskKey]*followed{}}
}

func (s *source) Info() counter.Info {
	i := s.info
	i.Signal, i.Variant, i.SwitchOverhead = s.signal, "by-heart", s.m.toll
	return i
}

// sharedDisks is Parts.SharedDisks.
func (s *source) sharedDisks(a, b sample.TaskKey) []host.Device {
	if s.targets[a] == nil || s.targets[b] == nil {
		return nil
	}
	return s.shared
}

func (s *source) Close() error              { return nil }
func (s *source) SetCPUs(online sample.Set) { s.m.online = append(s.m.online, online.String()) }
func (s *source) Totals() counter.Totals    { return s.totals }

func (s *source) Add(t counter.Target) error {
	s.added++
	if s.adding != nil {
		return s.adding
	}
	for _, g := range s.m.guests {
		if g.inode == t.Key.Inode {
			s.targets[t.Key] = &followed{guest: g}
			return nil
		}
	}
	return host.ErrGone
}

func (s *source) reading(f *followed) counter.Reading {
	r := counter.Reading{Cost: f.cost(), Coverage: 1}
	r.Extras.Set(sample.Instructions, 1e9)
	if s.change != nil {
		changed := r
		s.change(f.path, &changed)
		return changed
	}
	return r
}

func (s *source) Remove(k sample.TaskKey, _ time.Duration) (counter.Reading, bool) {
	f := s.targets[k]
	delete(s.targets, k)
	if f == nil || !s.open || !f.counting {
		return counter.Reading{}, false
	}
	return s.reading(f), true
}

func (s *source) Start() error {
	if s.open {
		return errors.New("started twice")
	}
	if s.start != nil {
		return s.start
	}
	s.open, s.on = true, true
	if s.starting != nil {
		s.starting()
	}
	for _, f := range s.targets {
		f.counting = true
	}
	return nil
}

func (s *source) Stop(end counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	if !s.open {
		return errors.New("stopped without a start")
	}
	s.open, s.on = false, end.Next
	// In a fixed order, so that a story in which costs depend on each other is
	// reproducible.
	s.order = slices.AppendSeq(s.order[:0], maps.Keys(s.targets))
	slices.SortFunc(s.order, func(a, b sample.TaskKey) int { return cmp.Compare(a.Inode, b.Inode) })
	for _, k := range s.order {
		f := s.targets[k]
		if _, ok := end.CPU(k); ok && f.counting {
			yield(k, s.reading(f))
		}
		f.counting = false
	}
	return s.finish
}
