package wire

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// columns is the message Columns as decoded by a server, some thousands a second: the
// same fields in reused memory. It accepts what package proto accepts, with the same
// meaning; the field numbers are those of wire.proto.
type columns struct {
	version uint32
	typ     Type
	machine []byte
	boot    []byte
	n       uint64
	at      int64
	rows    uint32
	text    []byte // part of the message
	lengths []uint32
	ts      []int64

	job, task, platform, signal, variant []uint32

	class  []Class
	flags  []uint32
	cpu    []float32
	cost   []float32
	extras []extraColumn

	coverage []float32
	strings  []string // the dictionary
	shape    uint64   // hash of the fields from which the rows' names and classes are made
}

// mix adds a field to the shape, by two checksums that processors compute. An agent that makes two
// batches of one shape misleads readers about its own machine only.
func (c *columns) mix(num protowire.Number, v uint64, b []byte) {
	sum := uint64(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))<<32 | uint64(crc32.ChecksumIEEE(b))
	c.shape = (bits.RotateLeft64(c.shape, 29)^v^sum)*0x9E3779B97F4A7C15 + uint64(num)
}

// extraColumn is the message Extra.
type extraColumn struct {
	name    uint32
	rows    []byte // part of the message
	floats  []float32
	doubles []float64
}

// maxExtras bounds the columns of a message: the existing ones, with a reserve for future
// ones.
const maxExtras = 256

func (c *columns) clear() {
	extras := c.extras[:0]
	*c = columns{lengths: c.lengths[:0], ts: c.ts[:0], job: c.job[:0], task: c.task[:0], platform: c.platform[:0], signal: c.signal[:0],
		variant: c.variant[:0], class: c.class[:0], flags: c.flags[:0], cpu: c.cpu[:0], cost: c.cost[:0], coverage: c.coverage[:0],
		extras: extras, strings: c.strings[:0]}
}

var (
	errUTF8  = errors.New("a name is not valid UTF-8")
	errLong  = errors.New("a column exceeds the maximum length of a batch")
	errField = errors.New("invalid field number")
)

// parse reads a message.
func (c *columns) parse(data []byte) error {
	c.clear()
	return fields(data, func(num protowire.Number, typ protowire.Type, v uint64, b []byte) (err error) {
		switch num {
		case 6, 7, 8, 10, 11, 12, 13, 14, 15:
			c.mix(num, v, b)
		}
		switch num {
		case 1:
			scalar(&c.version, typ, v)
		case 2, 3:
			if typ != protowire.BytesType {
				return nil
			}
			if !utf8.Valid(b) {
				return errUTF8
			}
			if num == 2 {
				c.machine = b
			} else {
				c.boot = b
			}
		case 4:
			scalar(&c.n, typ, v)
		case 5:
			if typ == protowire.VarintType {
				c.at = protowire.DecodeZigZag(v)
			}
		case 6:
			scalar(&c.rows, typ, v)
		case 7:
			if typ == protowire.BytesType {
				c.text = b
			}
		case 8:
			c.lengths, err = numbers(c.lengths, maxNames, typ, v, b)
		case 9:
			c.ts, err = zigzags(c.ts, typ, v, b)
		case 10:
			c.job, err = numbers(c.job, MaxSamples, typ, v, b)
		case 11:
			c.task, err = numbers(c.task, MaxSamples, typ, v, b)
		case 12:
			c.platform, err = numbers(c.platform, MaxSamples, typ, v, b)
		case 13:
			c.signal, err = numbers(c.signal, MaxSamples, typ, v, b)
		case 14:
			c.variant, err = numbers(c.variant, MaxSamples, typ, v, b)
		case 15:
			c.class, err = numbers(c.class, MaxSamples, typ, v, b)
		case 16:
			c.flags, err = numbers(c.flags, MaxSamples, typ, v, b)
		case 17:
			c.cpu, err = floats(c.cpu, typ, v, b)
		case 18:
			c.cost, err = floats(c.cost, typ, v, b)
		case 19:
			c.coverage, err = floats(c.coverage, typ, v, b)
		case 20:
			if typ == protowire.BytesType {
				err = c.extra(b)
			}
		case typeField:
			scalar(&c.typ, typ, v)
		}
		return err
	})
}

// extra reads a message Extra into reused memory.
func (c *columns) extra(data []byte) error {
	if len(c.extras) == maxExtras {
		return fmt.Errorf("more than %d extra columns", maxExtras)
	}
	if len(c.extras) < cap(c.extras) {
		c.extras = c.extras[:len(c.extras)+1]
	} else {
		c.extras = append(c.extras, extraColumn{})
	}
	x := &c.extras[len(c.extras)-1]
	*x = extraColumn{floats: x.floats[:0], doubles: x.doubles[:0]}
	return fields(data, func(num protowire.Number, typ protowire.Type, v uint64, b []byte) (err error) {
		switch num {
		case 1:
			scalar(&x.name, typ, v)
		case 2:
			if typ == protowire.BytesType {
				x.rows = b
			}
		case 3:
			x.floats, err = floats(x.floats, typ, v, b)
		case 4:
			x.doubles, err = doubles(x.doubles, typ, v, b)
		}
		return err
	})
}

// fields calls take for each field, with the number, or its bits, in v and the bytes in
// b. quell uses no groups.
func fields(data []byte, take func(num protowire.Number, typ protowire.Type, v uint64, b []byte) error) error {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		switch {
		case n < 0:
			return protowire.ParseError(n)
		case num > protowire.MaxValidNumber:
			return errField
		}
		data = data[n:]
		var v uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var v32 uint32
			v32, n = protowire.ConsumeFixed32(data)
			v = uint64(v32)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(data)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := take(num, typ, v, b); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// scalar sets a number; a field of another wire type is ignored.
func scalar[T uint32 | uint64 | Type](dst *T, typ protowire.Type, v uint64) {
	if typ == protowire.VarintType {
		*dst = T(v)
	}
}

// numbers appends to a repeated field, packed or unpacked.
func numbers[T uint32 | Class](dst []T, most int, typ protowire.Type, v uint64, b []byte) ([]T, error) {
	switch typ {
	case protowire.VarintType:
		dst = append(dst, T(v))
	case protowire.BytesType:
		for len(b) > 0 {
			if b[0] < 0x80 { // the common case
				dst, b = append(dst, T(b[0])), b[1:]
			} else {
				v, n := protowire.ConsumeVarint(b)
				if n < 0 {
					return dst, protowire.ParseError(n)
				}
				dst, b = append(dst, T(v)), b[n:]
			}
			if len(dst) > most {
				return dst, errLong
			}
		}
	}
	if len(dst) > most {
		return dst, errLong
	}
	return dst, nil
}

func zigzags(dst []int64, typ protowire.Type, v uint64, b []byte) ([]int64, error) {
	switch typ {
	case protowire.VarintType:
		dst = append(dst, protowire.DecodeZigZag(v))
	case protowire.BytesType:
		for len(b) > 0 && len(dst) <= MaxSamples {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return dst, protowire.ParseError(n)
			}
			dst, b = append(dst, protowire.DecodeZigZag(v)), b[n:]
		}
	}
	if len(dst) > MaxSamples {
		return dst, errLong
	}
	return dst, nil
}

func floats(dst []float32, typ protowire.Type, v uint64, b []byte) ([]float32, error) {
	switch typ {
	case protowire.Fixed32Type:
		dst = append(dst, math.Float32frombits(uint32(v)))
	case protowire.BytesType:
		if len(dst)+len(b)/4 > MaxSamples {
			return dst, errLong
		}
		for len(b) > 0 {
			v, n := protowire.ConsumeFixed32(b)
			if n < 0 {
				return dst, protowire.ParseError(n)
			}
			dst, b = append(dst, math.Float32frombits(v)), b[n:]
		}
	}
	if len(dst) > MaxSamples {
		return dst, errLong
	}
	return dst, nil
}

func doubles(dst []float64, typ protowire.Type, v uint64, b []byte) ([]float64, error) {
	switch typ {
	case protowire.Fixed64Type:
		dst = append(dst, math.Float64frombits(v))
	case protowire.BytesType:
		if len(dst)+len(b)/8 > MaxSamples {
			return dst, errLong
		}
		for len(b) > 0 {
			v, n := protowire.ConsumeFixed64(b)
			if n < 0 {
				return dst, protowire.ParseError(n)
			}
			dst, b = append(dst, math.Float64frombits(v)), b[n:]
		}
	}
	if len(dst) > MaxSamples {
		return dst, errLong
	}
	return dst, nil
}
