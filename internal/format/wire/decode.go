package wire

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Decode decodes a batch encoded by this or another version of quell into b and reuses
// the memory of b.Samples. The strings of all samples point into data, which must not be
// changed afterwards. A caller that keeps such a string for long should clone it.
func (b *Batch) Decode(data []byte) error {
	c := &b.decodeBuf
	if err := c.parse(data); err != nil {
		return fmt.Errorf("decode batch: %w", err)
	}
	if err := check(c.version, c.typ, Type_TYPE_BATCH); err != nil {
		return fmt.Errorf("decode batch: %w", err)
	}
	err := b.setColumns(c)
	if err == nil && len(b.Samples) > len(data) {
		err = errEmpty
	}
	if err != nil {
		return fmt.Errorf("decode batch %.80q/%.80q/%d: %w", c.machine, c.boot, c.n, err)
	}
	return nil
}

var (
	errPlace = errors.New("a name is not in the dictionary")
	// What waits to be read is bounded by its bytes, and how long others wait for it by its samples: of equal ones a
	// message of 75 bytes has 4096. Samples of several tasks or signals take a byte each, which names the task or signal.
	errEmpty = errors.New("it has more samples than bytes")
)

func (b *Batch) setColumns(c *columns) error {
	if c.rows < 1 || c.rows > MaxSamples { // an empty batch would only move the sender's number
		return fmt.Errorf("%d samples: want 1 to %d", c.rows, MaxSamples)
	}
	n := int(c.rows)
	names, err := c.names()
	if err != nil {
		return err
	}
	for _, col := range []struct {
		name string
		len  int
	}{{"ts", len(c.ts)}, {"job", len(c.job)}, {"task", len(c.task)}, {"platform", len(c.platform)}, {"signal", len(c.signal)},
		{"variant", len(c.variant)}, {"class", len(c.class)}, {"flags", len(c.flags)}, {"cpu", len(c.cpu)}, {"cost", len(c.cost)},
		{"coverage", len(c.coverage)}} {
		if col.len > 1 && col.len != n {
			return fmt.Errorf("column %s has %d values for %d rows", col.name, col.len, n)
		}
	}
	b.Key, b.At = Key{string(c.machine), string(c.boot), c.n}, sample.Millis(c.at)
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
		s.TS, s.Machine = b.At+sample.Millis(cell(c.ts, i)), b.Machine
		s.Job, s.Task = sample.JobName(name(c.job, i)), sample.TaskName(name(c.task, i))
		s.Platform, s.Signal = sample.Platform(name(c.platform, i)), sample.SignalName(name(c.signal, i))
		s.Variant = name(c.variant, i)
		class := cell(c.class, i)
		if class < 1 || class > math.MaxUint8 {
			return fmt.Errorf("row %d has the invalid class %d", i, class)
		}
		s.Class, s.Flags = sample.Class(class-1), sample.Flags(cell(c.flags, i))
		s.CPU, s.Cost, s.Coverage = cell(c.cpu, i), cell(c.cost, i), cell(c.coverage, i)
		s.Extras = sample.Extras{}
	}
	if bad {
		return errPlace
	}
	for i := range c.extras {
		if err := b.takeExtra(&c.extras[i], names); err != nil {
			return err
		}
	}
	return nil
}

// cell returns a row's value in a column.
func cell[T any](col []T, i int) (v T) {
	switch len(col) {
	case 0:
		return v
	case 1:
		return col[0]
	}
	return col[i]
}

// names splits the dictionary's text into its strings.
func (c *columns) names() ([]string, error) {
	text := unsafe.String(unsafe.SliceData(c.text), len(c.text)) // data does not change, by the contract of Decode
	c.strings = c.strings[:0]
	for _, n := range c.lengths {
		switch {
		case uint64(n) > uint64(len(text)):
			return nil, errors.New("the dictionary is longer than its text")
		case n > command.MaxName: // readers remember names
			return nil, fmt.Errorf("a name has %d bytes: want at most %d", n, command.MaxName)
		}
		c.strings = append(c.strings, text[:n])
		text = text[n:]
	}
	if text != "" {
		return nil, errors.New("the dictionary is shorter than its text")
	}
	return c.strings, nil
}

func (b *Batch) takeExtra(x *extraColumn, names []string) error {
	if int(x.name) >= len(names) {
		return errPlace
	}
	name := names[x.name]
	e, known := extraByName(name)
	if !known {
		return nil // a newer agent's
	}
	if len(x.floats) > 0 && len(x.doubles) > 0 {
		return fmt.Errorf("extra %s has both floats and doubles", name)
	}
	if len(x.rows) > 0 && len(x.rows) != (len(b.Samples)+7)/8 {
		return fmt.Errorf("extra %s has a row bitmap of %d bytes for %d samples", name, len(x.rows), len(b.Samples))
	}
	next, n := 0, len(x.floats)+len(x.doubles)
	for i := range b.Samples {
		if len(x.rows) > 0 && x.rows[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		if next == n {
			return fmt.Errorf("extra %s has too few values, %d", name, n)
		}
		if len(x.floats) > 0 {
			b.Samples[i].Extras.Set(e, float64(x.floats[next]))
		} else {
			b.Samples[i].Extras.Set(e, x.doubles[next])
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
