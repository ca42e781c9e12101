package wire

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/sample"
)

// MaxSamples bounds a batch. It bounds what a hostile message of few bytes can
// make its reader allocate: about 1 MB.
const MaxSamples = 4096

// maxNames is what MaxSamples can use, and room for extras to come.
const maxNames = 5*MaxSamples + 256

// Key tells batches, and records, apart: the same in every delivery. Boot names
// one life of an agent and N only grows in it, so whoever has taken in N has
// taken in, or will never see, all before it.
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
	// Skipped counts extra columns that this side has no place for.
	Skipped int
}

// Encode writes the batch as Columns. What Samples say of their machine is not
// read.
func (b *Batch) Encode() ([]byte, error) {
	if n := len(b.Samples); n > MaxSamples {
		return nil, fmt.Errorf("encode batch: %d samples, at most %d", n, MaxSamples)
	}
	n := len(b.Samples)
	c := &Columns{Version: Version, Machine: b.Machine, Boot: b.Boot, N: b.N, At: int64(b.At), Rows: uint32(n)}
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

// dictionary gives each string a place, in order of first use.
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

// column gathers a value per row, or a single one that they share, or none if
// that is zero.
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

// same and zero are by bits: NaN is NaN, and −0 is not 0.
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

// extra gathers an optional column, nil if no sample has a value.
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

// Decode reads a batch that Encode wrote, here or in another version of quell,
// over b; what Samples held is written over and their memory used again. The
// strings of all samples share one piece of memory: who keeps one of them for
// long clones it.
func (b *Batch) Decode(data []byte) error {
	var c Columns
	if err := Unmarshal(data, &c); err != nil {
		return err
	}
	if err := b.take(&c); err != nil {
		return fmt.Errorf("decode batch %s/%s/%d: %w", c.Machine, c.Boot, c.N, err)
	}
	return nil
}

var errPlace = errors.New("a name is not in the dictionary")

func (b *Batch) take(c *Columns) error {
	if c.Rows > MaxSamples {
		return fmt.Errorf("%d samples, at most %d", c.Rows, MaxSamples)
	}
	n := int(c.Rows)
	names, err := c.names()
	if err != nil {
		return err
	}
	for _, col := range []struct {
		name string
		len  int
	}{{"ts", len(c.Ts)}, {"job", len(c.Job)}, {"task", len(c.Task)}, {"platform", len(c.Platform)}, {"signal", len(c.Signal)},
		{"variant", len(c.Variant)}, {"class", len(c.Class)}, {"flags", len(c.Flags)}, {"cpu", len(c.Cpu)}, {"cost", len(c.Cost)},
		{"coverage", len(c.Coverage)}} {
		if col.len > 1 && col.len != n {
			return fmt.Errorf("column %s has %d values for %d rows", col.name, col.len, n)
		}
	}
	b.Key, b.At, b.Skipped = Key{c.Machine, c.Boot, c.N}, sample.Millis(c.At), 0
	if cap(b.Samples) < n {
		b.Samples = make([]sample.Sample, n)
	}
	b.Samples = b.Samples[:n]
	bad := false
	name := func(col []uint32, i int) string {
		p := cell(col, i)
		if int(p) >= len(names) {
			bad = true
			return ""
		}
		return names[p]
	}
	for i := range b.Samples {
		s := &b.Samples[i]
		s.TS, s.Machine = b.At+sample.Millis(cell(c.Ts, i)), b.Machine
		s.Job, s.Task = sample.JobName(name(c.Job, i)), sample.TaskName(name(c.Task, i))
		s.Platform, s.Signal = sample.Platform(name(c.Platform, i)), sample.SignalName(name(c.Signal, i))
		s.Variant = name(c.Variant, i)
		class := cell(c.Class, i)
		if class < 1 || class > math.MaxUint8 {
			return fmt.Errorf("row %d has class %d", i, class)
		}
		s.Class, s.Flags = sample.Class(class-1), sample.Flags(cell(c.Flags, i))
		s.CPU, s.Cost, s.Coverage = cell(c.Cpu, i), cell(c.Cost, i), cell(c.Coverage, i)
		s.Extras = sample.Extras{}
	}
	if bad {
		return errPlace
	}
	for _, x := range c.Extras {
		if err := b.takeExtra(x, names); err != nil {
			return err
		}
	}
	return nil
}

// cell is a row's value in a column.
func cell[T any](col []T, i int) (v T) {
	switch len(col) {
	case 0:
		return v
	case 1:
		return col[0]
	}
	return col[i]
}

// names cuts the dictionary's text into its strings.
func (c *Columns) names() ([]string, error) {
	if n := len(c.Lengths); n > maxNames {
		return nil, fmt.Errorf("%d names, at most %d", n, maxNames)
	}
	text := string(c.Text)
	names := make([]string, len(c.Lengths))
	for i, n := range c.Lengths {
		if uint64(n) > uint64(len(text)) {
			return nil, errors.New("the dictionary is longer than its text")
		}
		names[i], text = text[:n], text[n:]
	}
	if text != "" {
		return nil, errors.New("the dictionary is shorter than its text")
	}
	return names, nil
}

func (b *Batch) takeExtra(x *Extra, names []string) error {
	if int(x.Name) >= len(names) {
		return errPlace
	}
	name := names[x.Name]
	e, known := extraByName(name)
	if !known {
		b.Skipped++
		return nil
	}
	if len(x.Floats) > 0 && len(x.Doubles) > 0 {
		return fmt.Errorf("extra %s is in floats and in doubles", name)
	}
	if len(x.Rows) > 0 && len(x.Rows) != (len(b.Samples)+7)/8 {
		return fmt.Errorf("extra %s has %d bytes of rows for %d", name, len(x.Rows), len(b.Samples))
	}
	next, n := 0, len(x.Floats)+len(x.Doubles)
	for i := range b.Samples {
		if len(x.Rows) > 0 && x.Rows[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		if next == n {
			return fmt.Errorf("extra %s has too few values, %d", name, n)
		}
		if len(x.Floats) > 0 {
			b.Samples[i].Extras.Set(e, float64(x.Floats[next]))
		} else {
			b.Samples[i].Extras.Set(e, x.Doubles[next])
		}
		next++
	}
	if next != n {
		return fmt.Errorf("extra %s has %d values for %d rows", name, n, next)
	}
	return nil
}

func extraByName(name string) (sample.Extra, bool) {
	for _, e := range sample.AllExtras() {
		if e.String() == name {
			return e, true
		}
	}
	return 0, false
}
