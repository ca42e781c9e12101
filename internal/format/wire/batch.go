package wire

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/core/sample"
)

// MaxSamples bounds a batch, and thus the memory that a small hostile message can make
// its reader allocate: about 1 MB.
const MaxSamples = 4096

// maxNames is the maximum for MaxSamples, with a reserve for future extras.
const maxNames = 5*MaxSamples + 256

// Key identifies a batch or record and is the same in every delivery. Boot identifies one
// life of an agent, in which N only increases: a reader that has accepted N has accepted
// everything before it, or will never receive it.
type Key struct {
	Machine string
	Boot    string
	N       uint64
}

// Batch is the samples of one machine's tick.
type Batch struct {
	Key
	At      sample.Millis   // when it was made
	Samples []sample.Sample // their Machine is the batch's

	decodeBuf columns // what Decode read last; kept to reuse its memory
}

// Shape is equal for two decoded batches of a machine only if their samples have, one by one, the
// same names and classes, and usually if they have: a reader can keep what it has found out about
// them. 0: it is not known.
func (b *Batch) Shape() uint64 { return b.decodeBuf.shape }

// Encode encodes the batch as Columns. It ignores the samples' Machine.
func (b *Batch) Encode() ([]byte, error) {
	if n := len(b.Samples); n < 1 || n > MaxSamples {
		return nil, fmt.Errorf("encode batch: %d samples: want 1 to %d", n, MaxSamples)
	}
	n := len(b.Samples)
	c := &Columns{Version: Version, Type: Type_TYPE_BATCH, Machine: b.Machine, Boot: b.Boot, N: b.N, At: int64(b.At), Rows: uint32(n)}
	d := dictionary{places: make(map[string]uint32, n+8)}
	c.Ts = column(n, func(i int) int64 { return int64(b.Samples[i].TS - b.At) })
	c.Job = column(n, func(i int) uint32 { return d.place(string(b.Samples[i].Job)) })
	c.Task = column(n, func(i int) uint32 { return d.place(string(b.Samples[i].Task)) })
	c.Platform = column(n, func(i int) uint32 { return d.place(string(b.Samples[i].Platform)) })
	c.Signal = column(n, func(i int) uint32 { return d.place(string(b.Samples[i].Signal)) })
	c.Variant = column(n, func(i int) uint32 { return d.place(b.Samples[i].Variant) })
	c.Class = column(n, func(i int) Class { return Class(b.Samples[i].Class) + 1 })
	c.Flags = column(n, func(i int) uint32 { return uint32(b.Samples[i].Flags) })
	c.Cpu = column(n, func(i int) float32 { return b.Samples[i].CPU })
	c.Cost = column(n, func(i int) float32 { return b.Samples[i].Cost })
	c.Coverage = column(n, func(i int) float32 { return b.Samples[i].Coverage })
	for _, e := range sample.AllExtras() {
		if x := extra(e, b.Samples); x != nil {
			x.Name = d.place(e.String())
			c.Extras = append(c.Extras, x)
		}
	}
	c.Text, c.Lengths = d.text, d.lengths
	data, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode batch: %w", err)
	}
	return data, nil
}

// dictionary assigns an index to each string, in order of first use.
type dictionary struct {
	places  map[string]uint32
	text    []byte
	lengths []uint32
}

func (d *dictionary) place(s string) uint32 {
	p, ok := d.places[s]
	if !ok {
		p = uint32(len(d.lengths))
		d.places[s] = p
		d.text, d.lengths = append(d.text, s...), append(d.lengths, uint32(len(s)))
	}
	return p
}

// column returns the values of the rows: one per row, or a single one if all are equal,
// or none if all are zero.
func column[T int64 | uint32 | float32 | Class](n int, at func(int) T) []T {
	values := make([]T, n)
	shared := true
	for i := range values {
		values[i] = at(i)
		shared = shared && same(values[i], values[0])
	}
	switch {
	case n == 0 || shared && zero(values[0]):
		return nil
	case shared:
		return values[:1]
	}
	return values
}

// same and zero compare bits: NaN equals NaN, and −0 differs from 0.
func same[T int64 | uint32 | float32 | Class](x, y T) bool {
	if f, ok := any(x).(float32); ok {
		return math.Float32bits(f) == math.Float32bits(any(y).(float32))
	}
	return x == y
}

func zero[T int64 | uint32 | float32 | Class](x T) bool {
	var none T
	return same(x, none)
}

// extra returns an optional column, nil if no sample has a value.
func extra(e sample.Extra, samples []sample.Sample) *Extra {
	var values []float64
	rows := make([]byte, (len(samples)+7)/8)
	exact := true
	for i := range samples {
		v, ok := samples[i].Extras.Get(e)
		if !ok {
			continue
		}
		rows[i/8] |= 1 << (i % 8)
		values = append(values, v)
		exact = exact && math.Float64bits(float64(float32(v))) == math.Float64bits(v)
	}
	if len(values) == 0 {
		return nil
	}
	x := &Extra{Rows: rows}
	if len(values) == len(samples) {
		x.Rows = nil
	}
	if exact {
		x.Floats = make([]float32, len(values))
		for i, v := range values {
			x.Floats[i] = float32(v)
		}
	} else {
		x.Doubles = values
	}
	return x
}
