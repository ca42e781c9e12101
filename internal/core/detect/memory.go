package detect

import (
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// memory keeps intervals that are too old for rows, in blocks of several each, which get
// longer with age, so that a day costs little more than an hour. It makes changes of level
// detectable that are hours old.
type memory struct {
	tiers [len(blockOf)]tier
	spare []*block
}

// tierBlocks is the maximum number of blocks in a tier; beyond it the oldest is joined to a
// block of the next tier.
const tierBlocks = 60

// blockOf is the number of intervals in a block of each tier.
var blockOf = [...]int{5, 30}

// tier is a list of blocks of one length, oldest first; the newest may still grow.
type tier []*block

// block is the mean of several intervals.
type block struct {
	at       sample.Millis // end of its newest interval
	n        int           // intervals
	cost     []float32     // mean where counted
	counted  []uint16      // intervals with a cost, by slot
	pressure []float32     // mean
}

// keep adds a row that is too old to be kept completely.
func (m *memory) keep(r *row) {
	b := m.open(0, r.at)
	b.n++
	b.at = r.at
	b.grow(len(r.cost))
	for i, u := range r.pressure {
		b.pressure[i] += (u - b.pressure[i]) / float32(b.n)
	}
	for i, c := range r.cause {
		if c.counted() {
			b.counted[i]++
			b.cost[i] += (r.cost[i] - b.cost[i]) / float32(b.counted[i])
		}
	}
}

// open returns the block of a tier that still grows.
func (m *memory) open(level int, at sample.Millis) *block {
	t := &m.tiers[level]
	if n := len(*t); n > 0 && (*t)[n-1].n < blockOf[level] {
		return (*t)[n-1]
	}
	if len(*t) == tierBlocks {
		m.age(level)
	}
	var b *block
	if n := len(m.spare); n > 0 {
		b, m.spare = m.spare[n-1], m.spare[:n-1]
		clear(b.cost)
		clear(b.counted)
		clear(b.pressure)
		b.n = 0
	} else {
		b = &block{}
	}
	b.at = at
	*t = append(*t, b)
	return b
}

// age joins the oldest block of a tier to the newest of the next, or drops it.
func (m *memory) age(level int) {
	t := &m.tiers[level]
	old := (*t)[0]
	*t = slices.Delete(*t, 0, 1)
	if level+1 < len(m.tiers) {
		m.open(level+1, old.at).join(old)
	}
	m.spare = append(m.spare, old)
}

// join adds another block, which is newer.
func (b *block) join(o *block) {
	b.grow(len(o.cost))
	b.n, b.at = b.n+o.n, o.at
	for i, u := range o.pressure {
		b.pressure[i] += (u - b.pressure[i]) * float32(o.n) / float32(b.n)
	}
	for i := len(o.pressure); i < len(b.pressure); i++ {
		b.pressure[i] -= b.pressure[i] * float32(o.n) / float32(b.n)
	}
	for i, n := range o.counted {
		if n > 0 {
			b.counted[i] += n
			b.cost[i] += (o.cost[i] - b.cost[i]) * float32(n) / float32(b.counted[i])
		}
	}
}

func (b *block) grow(n int) {
	if more := n - len(b.cost); more > 0 {
		b.cost = append(b.cost, make([]float32, more)...)
		b.counted = append(b.counted, make([]uint16, more)...)
		b.pressure = append(b.pressure, make([]float32, more)...)
	}
}

// drop removes blocks that ended at or before the given time.
func (m *memory) drop(end sample.Millis) {
	for i := range m.tiers {
		t := &m.tiers[i]
		n := 0
		for n < len(*t) && (*t)[n].at <= end {
			n++
		}
		m.spare = append(m.spare, (*t)[:n]...)
		*t = slices.Delete(*t, 0, n)
	}
}

// forget removes a task's costs and, if all is set, its usage.
func (m *memory) forget(slot int, all bool) {
	for b := range m.blocks {
		if slot < len(b.cost) {
			b.cost[slot], b.counted[slot] = 0, 0
			if all {
				b.pressure[slot] = 0
			}
		}
	}
}

// blocks yields all blocks, oldest first.
func (m *memory) blocks(yield func(*block) bool) {
	for _, t := range slices.Backward(m.tiers[:]) {
		for _, b := range t {
			if !yield(b) {
				return
			}
		}
	}
}
