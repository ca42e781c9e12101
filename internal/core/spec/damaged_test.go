package spec

import (
	"math"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Only the damaged record is left out, and its job is learnt again from zero.
func TestRestoreLeavesOutTheDamaged(t *testing.T) {
	h := NewHistory(OwnHistory())
	for _, job := range []sample.JobName{"good", "bad"} {
		for i := range 200 {
			h.Add(Key{Job: job, Signal: sample.CPI}, sample.TaskKey{Inode: 1, FirstSeen: 1}, sample.Millis(i), 1, 2, 0)
		}
	}
	for name, damage := range map[string]func(*Record){
		"negative variance": func(r *Record) { r.Cost.M2 = -1 },
		"no number":         func(r *Record) { r.Self.Mean = math.NaN() },
		"infinite weight":   func(r *Record) { r.CPU.W = math.Inf(1) },
		"huge mean":         func(r *Record) { r.Cost.Mean = 1e300 },
		"no values":         func(r *Record) { r.Cost = stat.Moments{W: 1} },
		"threshold":         func(r *Record) { r.Published.StdDev = -1 },
		"tasks":             func(r *Record) { r.Full = -1 },
		"a task's samples":  func(r *Record) { r.Tasks[0].Samples = -1 },
	} {
		records := h.Records()
		damage(&records[0])
		again := NewHistory(OwnHistory())
		if n := again.Restore(records); n != 1 {
			t.Errorf("%s: %d left out", name, n)
		}
		left := again.Records()
		if len(left) != 1 || left[0].Job != "good" {
			t.Errorf("%s: %d records left", name, len(left))
		}
	}
}
