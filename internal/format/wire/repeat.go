package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Repeater repeatedly encodes batches of the same tasks: the constant parts are encoded
// once. It is for programs that simulate many machines.
type Repeater struct {
	still []byte // the constant fields
	buf   []byte
}

// NewRepeater takes everything from b except its number, its time, and each sample's
// usage and cost. The samples' intervals end at the time of a batch.
func NewRepeater(b *Batch) (*Repeater, error) {
	still := Batch{Key: Key{Machine: b.Machine, Boot: b.Boot}, Samples: make([]sample.Sample, len(b.Samples))}
	for i, s := range b.Samples {
		s.TS, s.CPU, s.Cost = 0, 0, 0
		still.Samples[i] = s
	}
	data, err := still.Encode()
	return &Repeater{still: data}, err
}

// Encode returns the message of a batch, valid until the next call. cpu and cost have one
// entry per sample, in the same order.
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
