package segment

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Mergeable reports whether Merge can read all of a file: a Writer wrote it, of a version
// without columns that are unknown here.
func Mergeable(f *parquet.File) bool {
	if text, ok := f.Lookup(alignedKey); !ok || text != aligned {
		return false
	}
	names := textNames()
	known := append(names[:], "ts", "cpu", "cost", "coverage", "flags")
	for _, e := range sample.AllExtras() {
		known = append(known, e.String())
	}
	return !slices.ContainsFunc(f.Schema().Columns(), func(path []string) bool { return len(path) != 1 || !slices.Contains(known, path[0]) })
}

// Block is consecutive rows of a row group. Columns that are not read are nil.
type Block struct {
	N         int
	TS        []int64
	CPU, Cost []float32 // a cost of NaN is null
	Coverage  []float32
	Flags     []int32
	Extras    [][]float64     // by sample.Extra; NaN for null; nil: no values
	Index     [texts][]int32  // of a Series' fields, into Names
	Names     [texts][]string // of the row group
}

// Reader reads a file of samples in order. Pages of its columns need not begin at the same
// rows. The Block is valid until the next call.
type Reader struct {
	Block
	groups  []parquet.RowGroup // not yet started
	left    int64              // rows of the current group that are in no block yet
	columns []column
}

// column is a column of a Reader.
type column interface {
	begin(g parquet.RowGroup) error
	fill() (left int, err error) // reads a page if no rows of the last one are left
	give(n int)                  // moves rows of the page to the block
	close() error
}

// ErrNotSegment means that a file is not in the form of a segment.
var ErrNotSegment = errors.New("not in the form of a segment")

// NewReader returns a Reader of some of a file's columns, of all if none is named. The
// caller must close it.
func NewReader(f *parquet.File, columns ...string) (*Reader, error) {
	r := &Reader{groups: f.RowGroups()}
	r.Extras = make([][]float64, len(sample.AllExtras()))
	var failed error
	leaf := func(name string) (leafColumn, bool) {
		if len(columns) > 0 && !slices.Contains(columns, name) {
			return leafColumn{}, false
		}
		l, ok := f.Schema().Lookup(name)
		if !ok || l.MaxRepetitionLevel > 0 || l.MaxDefinitionLevel > 0 && name != "cost" && l.Node.Type().Kind() != parquet.Double {
			failed = errors.Join(failed, fmt.Errorf("column %s: %w", name, ErrNotSegment))
		}
		return leafColumn{name, l.ColumnIndex, l.MaxDefinitionLevel > 0}, ok
	}
	for i, name := range textNames() {
		if l, ok := leaf(name); ok {
			r.columns = append(r.columns, &textColumn{numbers[int32]{leafColumn: l, to: &r.Index[i], kind: parquet.ByteArray}, &r.Names[i], nil})
		}
	}
	nan := float32(math.NaN())
	add(r, leaf, "ts", &r.TS, parquet.Int64, 0, (*encoding.Values).Int64, parquet.Value.Int64)
	add(r, leaf, "cpu", &r.CPU, parquet.Float, nan, (*encoding.Values).Float, parquet.Value.Float)
	add(r, leaf, "cost", &r.Cost, parquet.Float, nan, (*encoding.Values).Float, parquet.Value.Float)
	add(r, leaf, "coverage", &r.Coverage, parquet.Float, nan, (*encoding.Values).Float, parquet.Value.Float)
	add(r, leaf, "flags", &r.Flags, parquet.Int32, 0, (*encoding.Values).Int32, parquet.Value.Int32)
	for e := range r.Extras {
		if _, ok := f.Schema().Lookup(sample.Extra(e).String()); ok {
			add(r, leaf, sample.Extra(e).String(), &r.Extras[e], parquet.Double, math.NaN(), (*encoding.Values).Double, parquet.Value.Double)
		}
	}
	return r, failed
}

func add[T any](r *Reader, leaf func(string) (leafColumn, bool), name string, to *[]T, kind parquet.Kind, none T, plain func(*encoding.Values) []T, one func(parquet.Value) T) {
	if l, ok := leaf(name); ok {
		r.columns = append(r.columns, &numbers[T]{leafColumn: l, to: to, kind: kind, none: none, plain: plain, one: one})
	}
}

// Close ends reading. It may be called at any time.
func (r *Reader) Close() error {
	var errs []error
	for _, c := range r.columns {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}

// Next reads the next block, and reports whether there is one.
func (r *Reader) Next() (bool, error) {
	for r.left <= 0 {
		if len(r.groups) == 0 {
			r.N = 0
			return false, r.Close()
		}
		for _, c := range r.columns {
			if err := c.begin(r.groups[0]); err != nil {
				return false, err
			}
		}
		r.left, r.groups = r.groups[0].NumRows(), r.groups[1:]
	}
	n := int(r.left)
	for _, c := range r.columns {
		left, err := c.fill()
		if err != nil {
			return false, err
		}
		n = min(n, left)
	}
	for _, c := range r.columns {
		c.give(n)
	}
	r.N = n
	r.left -= int64(n)
	return true, nil
}

// EndOfSeries returns the end of the series of a row in the block. It does not compare
// columns that are not read.
func (b *Block) EndOfSeries(row int) int {
	end := row + 1
	task, machine, job := b.Index[Task], b.Index[Machine], b.Index[Job]
	signal, variant, platform := b.Index[Signal], b.Index[Variant], b.Index[Platform]
	class := b.Index[Class]
	if class == nil {
		class = task
	}
	for end < b.N && task[end] == task[row] && machine[end] == machine[row] && job[end] == job[row] &&
		signal[end] == signal[row] && variant[end] == variant[row] && class[end] == class[row] && platform[end] == platform[row] {
		end++
	}
	return end
}

// leafColumn is a column in the file's schema.
type leafColumn struct {
	name     string
	index    int
	nullable bool
}

// numbers reads a column of numbers.
type numbers[T any] struct {
	leafColumn
	to    *[]T // of the block
	kind  parquet.Kind
	none  T // for null
	plain func(*encoding.Values) []T
	one   func(parquet.Value) T

	pages  parquet.Pages // nil: the row group has no values
	page   parquet.Page  // the memory of rows
	rows   []T           // of the page, in no block yet
	room   []T
	dict   parquet.Dictionary
	values []T // of dict
}

func (c *numbers[T]) begin(g parquet.RowGroup) error {
	if err := c.close(); err != nil {
		return err
	}
	chunk := g.ColumnChunks()[c.index]
	if f, ok := chunk.(*parquet.FileColumnChunk); !ok || !c.nullable || f.NullCount() != f.NumValues() || f.NumValues() == 0 {
		c.pages = chunk.Pages()
	}
	return nil
}

func (c *numbers[T]) close() (err error) {
	c.release()
	if c.pages != nil {
		err = c.pages.Close()
		c.pages = nil
	}
	c.dict = nil
	return err
}

func (c *numbers[T]) release() {
	if c.page != nil {
		parquet.Release(c.page)
	}
	c.page, c.rows = nil, nil
}

func (c *numbers[T]) fill() (int, error) { return c.fillBy(c.take) }

func (c *numbers[T]) fillBy(take func(parquet.Page, *encoding.Values) error) (int, error) {
	if c.pages == nil {
		return math.MaxInt, nil
	}
	for len(c.rows) == 0 {
		c.release()
		p, err := c.pages.ReadPage()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			c.page = p
			values := p.Data()
			if err = ErrNotSegment; p.Type().Kind() == c.kind {
				err = take(p, &values)
			}
			if err == nil && len(c.rows) != int(p.NumRows()) {
				err = ErrNotSegment
			}
		}
		if err != nil {
			return 0, fmt.Errorf("column %s: %w", c.name, err)
		}
	}
	return len(c.rows), nil
}

// take sets rows to those of a page.
func (c *numbers[T]) take(p parquet.Page, values *encoding.Values) error {
	d := p.Dictionary()
	switch {
	case d != nil:
		if d != c.dict {
			c.dict, c.values = d, c.values[:0]
			for i := range d.Len() {
				c.values = append(c.values, c.one(d.Index(int32(i))))
			}
		}
		c.room = c.room[:0]
		for _, at := range values.Int32() {
			if uint(at) >= uint(len(c.values)) {
				return ErrNotSegment
			}
			c.room = append(c.room, c.values[at])
		}
		c.rows = c.room
	case c.nullable && p.NumNulls() > 0:
		c.room = spread(c.room[:0], p.DefinitionLevels(), c.plain(values), c.none)
		c.rows = c.room
	default:
		c.rows = c.plain(values)
	}
	return nil
}

// give moves n rows to the block. An extra without values in the row group stays nil.
func (c *numbers[T]) give(n int) {
	if c.pages != nil {
		*c.to, c.rows = c.rows[:n:n], c.rows[n:]
		return
	}
	*c.to = nil
	if c.kind != parquet.Double {
		for c.room = c.room[:0]; len(c.room) < n; {
			c.room = append(c.room, c.none)
		}
		*c.to = c.room
	}
}

// textColumn reads a column of texts as indices into its names.
type textColumn struct {
	numbers[int32]
	names *[]string
	at    map[string]int32 // of names; nil: no page was without a dictionary
}

func (c *textColumn) begin(g parquet.RowGroup) error {
	*c.names, c.at = nil, nil
	return c.numbers.begin(g)
}

func (c *textColumn) fill() (int, error) { return c.fillBy(c.take) }

func (c *textColumn) take(p parquet.Page, values *encoding.Values) error {
	if d := p.Dictionary(); d != nil {
		if *c.names == nil {
			*c.names = textsOf(d)
		}
		c.rows = values.Int32()
		for _, at := range c.rows {
			if uint(at) >= uint(len(*c.names)) {
				return ErrNotSegment
			}
		}
		return nil
	}
	if c.at == nil {
		c.at = map[string]int32{}
		for i, name := range *c.names {
			c.at[name] = int32(i)
		}
	}
	text, ends := values.ByteArray()
	c.room = c.room[:0]
	for i := range max(1, len(ends)) - 1 {
		b := text[ends[i]:ends[i+1]]
		at, ok := c.at[string(b)]
		if !ok {
			at = int32(len(*c.names))
			*c.names = append(*c.names, string(b))
			c.at[string(b)] = at
		}
		c.room = append(c.room, at)
	}
	c.rows = c.room
	return nil
}

// spread places the values at the rows that have one.
func spread[T any](dst []T, levels []byte, values []T, none T) []T {
	dst = slices.Grow(dst, len(levels))
	for _, level := range levels {
		v := none
		if level > 0 && len(values) > 0 {
			v, values = values[0], values[1:]
		}
		dst = append(dst, v)
	}
	return dst
}

// textsOf returns a dictionary's texts. They share memory.
func textsOf(d parquet.Dictionary) []string {
	values := d.Page().Data()
	text, ends := values.ByteArray()
	all := string(text)
	names := make([]string, 0, d.Len())
	for i := range d.Len() {
		names = append(names, all[ends[i]:ends[i+1]])
	}
	return names
}
