package runq

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
	"unsafe"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// pair is how long one slot's threads waited while another slot's ran.
type pair struct {
	waits, runs uint16
	time        uint64 // ns
}

// decodePairs appends to buf the pairs of a window in one of the kernel's tables
// (struct pairs of runq.bpf.c), and returns how many slices had no place in it.
func decodePairs(buf []pair, b []byte, window uint32) (_ []pair, refused uint64) {
	const first, size = int(unsafe.Offsetof(runqPairs{}.Pair)), int(unsafe.Sizeof(runqPairs{}.Pair[0]))
	le := binary.LittleEndian
	for w := b[first:]; len(w) >= size; w = w[size:] {
		if key := le.Uint64(w); uint32(key>>32) == window {
			buf = append(buf, pair{waits: uint16(key >> 16), runs: uint16(key), time: le.Uint64(w[8:])})
		}
	}
	return buf, le.Uint64(b)
}

// account holds the tasks served in a window, in the order of the slots that waited.
type account struct {
	pairs  []pair
	served []counter.Served // those of the readings, valid until the account is settled again
}

// settle sorts pairs and sums those that are there more than once.
func (a *account) settle(pairs []pair) {
	slices.SortFunc(pairs, func(x, y pair) int { return cmp.Or(cmp.Compare(x.waits, y.waits), cmp.Compare(x.runs, y.runs)) })
	a.pairs = pairs[:0]
	for _, p := range pairs {
		if n := len(a.pairs); n > 0 && a.pairs[n-1].waits == p.waits && a.pairs[n-1].runs == p.runs {
			a.pairs[n-1].time += p.time
			continue
		}
		a.pairs = append(a.pairs, p)
	}
	// Grown once to its full size, so that readings keep their parts of it.
	a.served = slices.Grow(a.served[:0], len(a.pairs))
}

// servedFor returns the tasks served while a slot's threads waited, the longest first, and the
// sum of that, at most the time that they waited for others. keys are by slot.
func (a *account) servedFor(slot uint32, other uint64, keys []sample.TaskKey) (_ []counter.Served, sum uint64) {
	at, _ := slices.BinarySearchFunc(a.pairs, slot, func(p pair, slot uint32) int { return cmp.Compare(uint32(p.waits), slot) })
	from := len(a.served)
	for _, p := range a.pairs[at:] {
		if uint32(p.waits) != slot {
			break
		}
		// Programs that still run may have added to the pair and not yet to the wait.
		d := min(p.time, other-sum)
		sum += d
		if d > 0 {
			a.served = append(a.served, counter.Served{By: keys[p.runs], Time: time.Duration(d)})
		}
	}
	out := a.served[from:len(a.served):len(a.served)]
	slices.SortStableFunc(out, func(x, y counter.Served) int { return cmp.Compare(y.Time, x.Time) })
	return out, sum
}
