package agent

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/sample"
)

// served has room for who was served while tasks waited, of all samples of a window:
// by name for the trace and the server, by key for detection.
type served struct {
	names  []sample.Served
	keys   []detect.Served
	groups []*group // of one task's
}

// reset begins a window: what was of the one before is overwritten.
func (s *served) reset() { s.names, s.keys = s.names[:0], s.keys[:0] }

// grow makes room for a source's readings.
func (s *served) grow(all []counted) {
	n := 0
	for i := range all {
		n += len(all[i].Served)
	}
	s.names, s.keys = slices.Grow(s.names, n), slices.Grow(s.keys, n)
}

// nameServed says whom a reading of a task means; nil where nothing was counted. A
// key that the agent does not know is outside any task. What it returns stays as it
// is until the next window closes. The CPUs' weights entitle to nothing of other queues.
func (a *Agent) nameServed(t *task, d sample.Domain, all []counter.Served) ([]sample.Served, []detect.Served) {
	if all == nil {
		return nil, nil
	}
	s := &a.window.served
	from, outside := len(s.names), 0.0
	s.groups = s.groups[:0]
	for _, o := range all {
		by := a.tasks[o.By]
		if by == nil {
			outside += o.Time.Seconds()
			continue
		}
		s.groups = append(s.groups, by.group)
		s.names = append(s.names, sample.Served{By: by.Name, Time: o.Time.Seconds()})
		s.keys = append(s.keys, detect.Served{By: o.By, Time: o.Time.Seconds()})
	}
	if d == sample.SharedCPU {
		a.fair(t.group, s.names[from:], s.keys[from:])
	}
	if outside > 0 { // it was in all, so there is room
		at, _ := slices.BinarySearchFunc(s.names[from:], outside, func(x sample.Served, d float64) int { return cmp.Compare(d, x.Time) })
		s.names = slices.Insert(s.names, from+at, sample.Served{By: detect.OutsideName, Time: outside})
		s.keys = slices.Insert(s.keys, from+at, detect.Served{By: detect.Outside().Key, Time: outside})
	}
	return slices.Clip(s.names[from:]), slices.Clip(s.keys[from:])
}

// fair says what the weights of those that were served entitle them to beside a task
// in a group. In the same group that is a matter of their threads, and not known.
func (a *Agent) fair(victim *group, names []sample.Served, keys []detect.Served) {
	if victim == nil {
		return
	}
	groups := a.window.served.groups
	a.groups.contend(victim, groups)
	for i, g := range groups {
		if g != victim {
			names[i].Fair = a.groups.share(g)
			keys[i].Fair = names[i].Fair
		}
	}
}
