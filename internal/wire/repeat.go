package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quell-dev/quell/internal/sample"
)

// Repeater encodes batches of the same tasks again and again: what is the same in
// all of them is encoded once. It is for who plays many machines at once.
type Repeater struct {
	still []byte // the fields that stay
	buf   []byte
}

// NewRepeater takes from b all but its number, its time, and what each of its
// samples says of usage and cost. The samples' intervals end when a batch is made.
func NewRepeater(b *Batch) (*Repeater, error) {
	still := Batch{Key: Key{Machine: b.Machine, Boot: b.Boot}, Samples: make([]sample.Sample, len(b.Samples))}
	for i, s := range b.Samples {
		s.TS, s.CPU, s.Cost = 0, 0, 0
		still.Samples[i] = s
	}
	data, err := still.Encode()
	return &Repeater{still: data}, err
}

// Encode returns the message of a batch, good until the next call. cpu and cost
// have an entry for each sample, in their order.
func (r *Repeater) Encode(n uint64, at sample.Millis, cpu, cost []float32) []byte {
	b := append(r.buf[:0], r.still...)
	b = protowire.AppendTag(b, 4, protowire.VarintType)
	b = protowire.AppendVarint(b, n)
	b = protowire.AppendTag(b, 5, protowire.VarintType)
	b = protowire.AppendVarint(b, protowire.EncodeZigZag(int64(at)))
	b = appendFloats(b, 17, cpu)
	r.buf = appendFloats(b, 18, cost)
	return r.buf
}

// appendFloats appends a packed field.
func appendFloats(b []byte, num protowire.Number, values []float32) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(4*len(values)))
	for _, v := range values {
		b = protowire.AppendFixed32(b, math.Float32bits(v))
	}
	return b
}
