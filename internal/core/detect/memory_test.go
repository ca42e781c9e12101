package detect

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// TestMemoryKeepsMeans: the means over everything in memory are those of the intervals that
// were put in, however they were joined to blocks.
func TestMemoryKeepsMeans(t *testing.T) {
	for _, intervals := range []int{1, 4, 5, 299, 301, 1000, 2100} {
		var m memory
		var cost, counted, pressure float64
		for i := range intervals {
			r := &row{at: sample.Millis(i) * minute}
			r.grow(1 + min(i, 1)) // the second task comes one interval later
			r.cost[0], r.cause[0], r.pressure[0] = float32(1+i%7), [...]cause{good, byNeighbour, noSpec, bySteal}[i%4], float32(i%3)
			if i%4 != 3 {
				cost, counted = cost+float64(1+i%7), counted+1
			}
			pressure += float64(i % 3)
			m.keep(r)
		}
		var gotCost, gotCounted, gotPressure, n float64
		last := sample.Millis(-1)
		for b := range m.blocks {
			if b.at <= last {
				t.Fatalf("%d intervals: a block that ends at %d after one at %d", intervals, b.at, last)
			}
			last = b.at
			k := float64(b.counted[0])
			gotCost, gotCounted = gotCost+k*float64(b.cost[0]), gotCounted+k
			gotPressure, n = gotPressure+float64(b.n)*float64(b.pressure[0]), n+float64(b.n)
		}
		if n != float64(intervals) || gotCounted != counted || math.Abs(gotCost-cost) > 1e-3*cost || math.Abs(gotPressure-pressure) > 1e-3*pressure+1e-6 {
			t.Errorf("%d intervals: %v kept, %v counted of %v, cost %v of %v, pressure %v of %v", intervals, n, gotCounted, counted, gotCost, cost, gotPressure, pressure)
		}
	}
}

// TestMemoryIsBounded: it holds a fixed number of blocks and drops what is too old.
func TestMemoryIsBounded(t *testing.T) {
	var m memory
	for i := range 10_000 {
		r := &row{at: sample.Millis(i) * minute}
		r.grow(3)
		m.keep(r)
	}
	blocks := func() (n int) {
		for range m.blocks {
			n++
		}
		return n
	}
	if n := blocks(); n != 2*tierBlocks {
		t.Errorf("%d blocks of %d", n, 2*tierBlocks)
	}
	if m.drop(9_990 * minute); blocks() > 2 {
		t.Errorf("%d blocks are left of ten minutes", blocks())
	}
}

// TestAnHourOldChangeOfLevelIsRemembered: the antagonist came two and a half hours ago and
// has stayed; all rows that are kept are bad.
func TestAnHourOldChangeOfLevelIsRemembered(t *testing.T) {
	all := story(t, 300, []float64{0.3, 0, 0}, func(m, i int, rng *rand.Rand) float64 {
		return [...]float64{pick(m >= 150, 2, 0.1), 0.8 + 0.2*rng.NormFloat64(), pick(rng.IntN(3) == 0, 1, 0)}[i]
	}, nil)
	f := &all[len(all)-1]
	if f.At < 299*minute || f.Antagonists != 1 || f.Suspects[0].Key.Inode != 2 || f.Suspects[0].Level != Likely {
		t.Errorf("at minute %d %d are named: %+v", f.At/minute, f.Antagonists, f.Suspects)
	}
}

// The next task in the place of one that has ended has no costs of it, not even those that it had
// under a limit: they would count as its own.
func TestAnEndedTasksCostsAreNotTheNextOnes(t *testing.T) {
	d, sig := New(paper(t, EvidenceMethod)), signal(t, sample.CPI)
	batch := Reading{Task: task(2, sample.Batch), Cost: 9, CPU: 1, Pressure: 1, Spec: ready(1, 0.5)}
	d.Observe(sig, minute, []Reading{victim(1, 1), batch})
	d.Observe(sig, 2*minute, []Reading{victim(1, 1), batch.with(func(r *Reading) { r.Flags = sample.Capped })})
	was := d.series[sample.CPI].index[batch.Task.Key]
	d.Forget(batch.Task.Key)
	next := batch.with(func(r *Reading) { r.Task, r.Cost = task(3, sample.Batch), 1 })
	d.Observe(sig, 3*minute, []Reading{victim(1, 1), next})
	s := d.series[sample.CPI]
	slot := s.index[next.Task.Key]
	for i, want := range []float64{0, 0, 1} {
		if got := s.rows[i].ownCost(slot); got != want || slot != was {
			t.Errorf("place %d, before %d: in interval %d it cost %v, want %v", slot, was, i+1, got, want)
		}
	}
}
