package recording

import (
	"cmp"
	"io"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// reading is the state of a task's counters at one time: cycles and instructions in
// total, or what another signal's cost is the ratio of, and CPU time in seconds.
type reading struct {
	at                      sample.Millis
	cycles, instructions, s float64
	misses                  float64 // NaN: not counted
}

// since makes a sample of two readings of a task; false if there was no time between
// them. It has a CPI only if both counters moved; another signal's cost may be 0. CPU time
// that is missing is 0: recorders leave out counters that never moved.
func (r reading) since(prev reading, s *sample.Sample) bool {
	wall := r.at.Sub(prev.at).Seconds()
	if wall <= 0 {
		return false
	}
	used := r.s - prev.s
	if math.IsNaN(used) {
		used = 0
	}
	s.TS, s.Coverage, s.Cost = r.at, 1, float32(math.NaN())
	s.Flags, s.Extras = 0, sample.Extras{}
	cycles, instructions := r.cycles-prev.cycles, r.instructions-prev.instructions
	if used < 0 || cycles < 0 || instructions < 0 {
		s.Flags, s.CPU = sample.Restarted, 0
		return true
	}
	s.CPU = float32(used / wall)
	if (cycles > 0 || cycles == 0 && s.Signal != sample.CPI) && instructions > 0 {
		s.Cost = float32(cycles / instructions)
	}
	if cycles >= 0 && s.Signal == sample.CPI {
		s.Extras.Set(sample.Cycles, cycles)
	}
	if instructions >= 0 && s.Signal == sample.CPI {
		s.Extras.Set(sample.Instructions, instructions)
	}
	if m := r.misses - prev.misses; m >= 0 {
		s.Extras.Set(sample.LLCMisses, m)
	}
	return true
}

// buffered are samples that had to be read completely, because their file is not in order
// of time.
type buffered struct {
	trace.Contents
	samples []sample.Sample
	next    int
}

// add stores a sample; one that no trace can hold is counted as bad.
func (h *buffered) add(s *sample.Sample) {
	if err := trace.Check(s); err != nil {
		h.Found.Skip(1, "%s at %d: %v", s.Task, s.TS, err)
		return
	}
	h.samples = append(h.samples, *s)
}

// sort puts them in order of time, and at one time in order of machine and task.
func (h *buffered) sort() {
	slices.SortStableFunc(h.samples, func(a, b sample.Sample) int {
		return cmp.Or(cmp.Compare(a.TS, b.TS), cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Task, b.Task))
	})
}

// Read implements Reader.
func (h *buffered) Read(s *sample.Sample) error {
	if h.next == len(h.samples) {
		return io.EOF
	}
	*s = h.samples[h.next]
	h.next++
	h.Found.Rows++
	return nil
}
