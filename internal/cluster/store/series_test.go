package store

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// TestBatchesOfOneShape: batches whose shape says that they have the names of the one before are
// stored as others are: also after names have changed, with samples that are rejected, with names
// that are not UTF-8, from two runs, and over the end of the index.
func TestBatchesOfOneShape(t *testing.T) {
	c := &clock{start.Add(time.Hour)}
	dirs := []string{t.TempDir(), t.TempDir()}
	var stores []*Store
	for _, dir := range dirs {
		opt := c.options()
		opt.Keep = map[string]time.Duration{Samples: 2 * time.Hour}
		stores = append(stores, open(t, dir, opt))
	}
	r := rand.New(rand.NewPCG(1, 2))
	made := []int{3, 3}
	for n := uint64(1); n < 200; n++ {
		for m, machine := range []string{"m1", "m2"} {
			if r.IntN(10) == 0 {
				made[m] = 1 + r.IntN(6)
			}
			for i, s := range stores {
				b := tick(machine, "b", n, made[m])
				for j := range b.Samples {
					b.Samples[j].TS = sample.At(c.now)
					if made[m] == 5 && j == 2 {
						b.Samples[j].Task = "/\xff"
					}
					if n%17 == 0 && j == 1 {
						b.Samples[j].TS = 5 // long ago
					}
				}
				if i == 1 {
					b.Shape = uint64(made[m])
				}
				if !s.Add(b) {
					t.Fatal("a batch was not new")
				}
			}
		}
		c.now = c.now.Add(30 * time.Second)
		if n%20 == 0 {
			for _, s := range stores {
				flush(t, s)
			}
		}
	}
	var rows [2][]trace.Row
	for i, s := range stores {
		flush(t, s)
		rows[i] = read[trace.Row](t, dirs[i], Samples)
	}
	if same(t, "with shapes", rows[1], rows[0]); len(rows[0]) < 500 {
		t.Errorf("%d rows", len(rows[0]))
	}
	if a, b := stores[0].Stats(), stores[1].Stats(); a.Samples != b.Samples || a.Rejected != b.Rejected || a.Rejected == 0 {
		t.Errorf("%+v, with shapes %+v", a, b)
	}
}
