package agent

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// counted is what a source counted for a task, if it did.
type counted struct {
	counter.Reading
	ok bool
}

// served holds which tasks were served while others waited, for all samples of a
// window: by name for the trace and the server, by key for detection.
type served struct {
	names  []sample.Served
	keys   []detect.Served
	groups []*cgroupNode // of the tasks in one reading
}

// reset begins a window; the data of the previous one is overwritten.
func (s *served) reset() { s.names, s.keys = s.names[:0], s.keys[:0] }

// grow makes room for a source's readings.
func (s *served) grow(all []counted) {
	n := 0
	for i := range all {
		n += len(all[i].Served)
	}
	s.names, s.keys = slices.Grow(s.names, n), slices.Grow(s.keys, n)
}

// name translates a reading's served tasks to names and keys; nil if nothing was
// counted. An unknown key means outside any task. The result is valid until the next
// window closes. CPU weights give no fair share of other queues.
func (s *served) name(tasks map[sample.TaskKey]*task, groups *cgroupTree, t *task, d sample.Domain, all []counter.Served) ([]sample.Served, []detect.Served) {
	if all == nil {
		return nil, nil
	}
	from, outside := len(s.names), 0.0
	s.groups = s.groups[:0]
	for _, o := range all {
		by := tasks[o.By]
		if by == nil {
			outside += o.Time.Seconds()
			continue
		}
		s.groups = append(s.groups, by.group)
		s.names = append(s.names, sample.Served{By: by.Name, Time: o.Time.Seconds()})
		s.keys = append(s.keys, detect.Served{By: o.By, Time: o.Time.Seconds()})
	}
	if d == sample.SharedCPU {
		groups.setFair(t.group, s.groups, s.names[from:], s.keys[from:])
	}
	if outside > 0 { // it was one of all, so the capacity suffices
		at, _ := slices.BinarySearchFunc(s.names[from:], outside, func(x sample.Served, d float64) int { return cmp.Compare(d, x.Time) })
		s.names = slices.Insert(s.names, from+at, sample.Served{By: detect.OutsideName, Time: outside})
		s.keys = slices.Insert(s.keys, from+at, detect.Served{By: detect.Outside().Key, Time: outside})
	}
	return slices.Clip(s.names[from:]), slices.Clip(s.keys[from:])
}
