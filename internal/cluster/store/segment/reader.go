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
	known := map[string]bool{"ts": true, "cpu": true, "cost": true, "coverage": true, "flags": true}
	for _, name := range textNames() {
		known[name] = true
	}
	for _, e := range sample.AllExtras() {
		known[e.String()] = true
	}
	for _, path := range f.Schema().Columns() {
		if len(path) != 1 || !known[path[0]] {
			return false
		}
	}
	return true
}

// source is one file of a merge, positioned at a row of a known series.
type source struct {
	name   string
	layout *layout
	groups []parquet.RowGroup // not yet started
	pages  []parquet.Pages    // of the current group; nil: a column without values
	left   int64              // its rows that are not read yet
	block  block
	row    int // in the block
	until  int // where the series ends in the block
	series Series
	done   bool
}

// block is the rows of one page of each column.
type block struct {
	n         int
	ts        []int64
	cpu, cost []float32
	coverage  []float32
	flags     []int32
	extras    [][]float64 // by sample.Extra; nil: no values
	index     [texts][]int32
	names     [texts][]string
	held      []parquet.Page // the memory of ts, cpu and index
	room      [][]float64    // buffers for extras
}

func open(name string, f *parquet.File) (*source, error) {
	if !Mergeable(f) {
		return nil, fmt.Errorf("%s: not a segment of this version", name)
	}
	s := &source{name: name, layout: &layout{at: map[string]int{}}, groups: f.RowGroups()}
	for i, path := range f.Schema().Columns() {
		s.layout.at[path[0]] = i
	}
	s.pages = make([]parquet.Pages, len(s.layout.at))
	n := len(sample.AllExtras())
	s.block.extras, s.block.room = make([][]float64, n), make([][]float64, n)
	if err := s.nextBlock(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close ends reading. It may be called at any time.
func (s *source) close() error {
	s.block.release()
	var errs []error
	for i, p := range s.pages {
		if p != nil {
			errs = append(errs, p.Close())
			s.pages[i] = nil
		}
	}
	return errors.Join(errs...)
}

func (b *block) release() {
	for _, p := range b.held {
		parquet.Release(p)
	}
	b.held = b.held[:0]
}

// advance advances by n rows, at most to the end of the series in the block.
func (s *source) advance(n int) error {
	s.row += n
	if s.row == s.block.n {
		return s.nextBlock()
	}
	if s.row == s.until {
		return s.findSeries()
	}
	return nil
}

// findSeries determines the series of the row and where it ends.
func (s *source) findSeries() error {
	b, r := &s.block, s.row
	for i := range s.series {
		place := b.index[i][r]
		if uint(place) >= uint(len(b.names[i])) {
			return fmt.Errorf("%s: row %d has dictionary index %d of %d", s.name, r, place, len(b.names[i]))
		}
		s.series[i] = b.names[i][place]
	}
	end := r + 1
	task, machine, job := b.index[Task], b.index[Machine], b.index[Job]
	signal, variant, class, platform := b.index[Signal], b.index[Variant], b.index[Class], b.index[Platform]
	for end < b.n && task[end] == task[r] && machine[end] == machine[r] && job[end] == job[r] &&
		signal[end] == signal[r] && variant[end] == variant[r] && class[end] == class[r] && platform[end] == platform[r] {
		end++
	}
	s.until = end
	return nil
}

// nextBlock advances to the next block, in the next row group if needed.
func (s *source) nextBlock() error {
	s.block.release()
	for s.left == 0 {
		if err := s.close(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if len(s.groups) == 0 {
			s.done = true
			return nil
		}
		s.begin(s.groups[0])
		s.groups = s.groups[1:]
	}
	if err := s.read(); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	s.left -= int64(s.block.n)
	s.row = 0
	return s.findSeries()
}

// begin opens the columns of a row group.
func (s *source) begin(g parquet.RowGroup) {
	s.left = g.NumRows()
	clear(s.block.names[:])
	for i, c := range g.ColumnChunks() {
		if f, ok := c.(*parquet.FileColumnChunk); ok && f.NullCount() == f.NumValues() && f.NumValues() > 0 {
			continue
		}
		s.pages[i] = c.Pages()
	}
}

// errKind means that a file declared as a segment is none.
var errKind = errors.New("not in the form of a segment")

// page reads the next page of a column, which must have that kind and a dictionary
// exactly if places is set; nil if the column has no values.
func (s *source) page(name string, kind parquet.Kind, places bool) (parquet.Page, error) {
	i, ok := s.layout.at[name]
	if !ok || s.pages[i] == nil {
		return nil, nil
	}
	p, err := s.pages[i].ReadPage()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", name, err)
	}
	s.block.held = append(s.block.held, p)
	if p.Type().Kind() != kind || (p.Dictionary() != nil) != places {
		return nil, fmt.Errorf("column %s: %w", name, errKind)
	}
	if n := int(p.NumRows()); s.block.n < 0 {
		s.block.n = n
	} else if n != s.block.n {
		return nil, fmt.Errorf("column %s: a page of %d rows, other columns have %d", name, n, s.block.n)
	}
	return p, nil
}

// read reads the next page of every column.
func (s *source) read() error {
	b := &s.block
	b.n = -1
	p, err := s.page("ts", parquet.Int64, false)
	if err != nil || p == nil {
		return errors.Join(err, missing(p))
	}
	b.ts = values(p).Int64()
	for i, name := range textNames() {
		if p, err = s.page(name, parquet.ByteArray, true); err != nil || p == nil {
			return errors.Join(err, missing(p))
		}
		if b.names[i] == nil {
			b.names[i] = textsOf(p.Dictionary())
		}
		b.index[i] = values(p).Int32()
	}
	if p, err = s.page("cpu", parquet.Float, false); err != nil || p == nil {
		return errors.Join(err, missing(p))
	}
	b.cpu = values(p).Float()
	if err := s.numbers(); err != nil {
		return err
	}
	for e := range b.extras {
		if p, err = s.page(sample.Extra(e).String(), parquet.Double, false); err != nil {
			return err
		}
		b.extras[e] = nil
		if p != nil {
			b.room[e] = spread(b.room[e][:0], p.DefinitionLevels(), values(p).Double(), math.NaN())
			b.extras[e] = b.room[e]
		}
	}
	for _, n := range []int{len(b.ts), len(b.cpu), len(b.cost), len(b.coverage), len(b.flags)} {
		if n != b.n {
			return errKind
		}
	}
	for i := range b.index {
		if len(b.index[i]) != b.n {
			return errKind
		}
	}
	for e := range b.extras {
		if b.extras[e] != nil && len(b.extras[e]) != b.n {
			return errKind
		}
	}
	return nil
}

func missing(p parquet.Page) error {
	if p == nil {
		return errKind
	}
	return nil
}

// numbers reads the columns that are copied into the block: costs with NaN for null, and
// those with a dictionary.
func (s *source) numbers() error {
	b := &s.block
	p, err := s.page("cost", parquet.Float, false)
	switch {
	case err != nil:
		return err
	case p == nil: // no row has a cost
		b.cost = spread(b.cost[:0], make([]byte, b.n), nil, float32(math.NaN()))
	default:
		b.cost = spread(b.cost[:0], p.DefinitionLevels(), values(p).Float(), float32(math.NaN()))
	}
	if p, err = s.page("coverage", parquet.Float, true); err != nil || p == nil {
		return errors.Join(err, missing(p))
	}
	d, places := p.Dictionary(), values(p).Int32()
	b.coverage = b.coverage[:0]
	for last, v := int32(-1), float32(0); len(b.coverage) < len(places); b.coverage = append(b.coverage, v) {
		if place := places[len(b.coverage)]; place != last {
			if uint(place) >= uint(d.Len()) {
				return errKind
			}
			last, v = place, d.Index(place).Float()
		}
	}
	if p, err = s.page("flags", parquet.Int32, true); err != nil || p == nil {
		return errors.Join(err, missing(p))
	}
	d, places = p.Dictionary(), values(p).Int32()
	b.flags = b.flags[:0]
	for last, v := int32(-1), int32(0); len(b.flags) < len(places); b.flags = append(b.flags, v) {
		if place := places[len(b.flags)]; place != last {
			if uint(place) >= uint(d.Len()) {
				return errKind
			}
			last, v = place, d.Index(place).Int32()
		}
	}
	return nil
}

// spread places the values at the rows that have one.
func spread[T any](dst []T, levels []byte, values []T, none T) []T {
	if len(levels) == len(values) {
		return append(dst, values...)
	}
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
	text, ends := values(d.Page()).ByteArray()
	all := string(text)
	names := make([]string, 0, d.Len())
	for i := range d.Len() {
		names = append(names, all[ends[i]:ends[i+1]])
	}
	return names
}

// values returns the values of a page.
func values(p parquet.Page) *encoding.Values {
	v := p.Data()
	return &v
}
