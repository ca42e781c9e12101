package digest

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/parquet-go/parquet-go"
)

// errNotSegment means that a column's type is not that of a segment's column.
var errNotSegment = errors.New("not in the form of a segment")

// column reads one column of a segment page by page into one of the slices ids, whole and
// reals, which hold the remaining rows of the page.
type column struct {
	name  string
	leaf  int
	null  bool // values may be missing
	names *names

	pages parquet.Pages
	page  parquet.Page
	dict  parquet.Dictionary
	ids   []int32 // texts: indices into names
	whole []int64
	reals []float32 // NaN for a missing value

	known  []int32 // of the dictionary's texts
	values []int64 // the dictionary's integers
	idBuf  []int32
	inBuf  []int64
	reBuf  []float32
}

// names assigns numbers to the texts of a file's column.
type names struct {
	text []string
	id   map[string]int32
}

func (n *names) of(b []byte) int32 {
	if id, ok := n.id[string(b)]; ok {
		return id
	}
	id := int32(len(n.text))
	n.text = append(n.text, string(b))
	n.id[n.text[id]] = id
	return id
}

func (c *column) open(g parquet.RowGroup) {
	c.close()
	c.pages = g.ColumnChunks()[c.leaf].Pages()
}

func (c *column) close() {
	c.release()
	if c.pages != nil {
		_ = c.pages.Close() // it was only read
		c.pages = nil
	}
	c.dict = nil
}

func (c *column) release() {
	if c.page != nil {
		parquet.Release(c.page)
		c.page = nil
	}
	c.ids, c.whole, c.reals = nil, nil, nil
}

// left is the number of remaining rows of the page.
func (c *column) left() int { return max(len(c.ids), len(c.whole), len(c.reals)) }

// skip advances by n rows of the page.
func (c *column) skip(n int) {
	switch {
	case c.ids != nil:
		c.ids = c.ids[n:]
	case c.whole != nil:
		c.whole = c.whole[n:]
	default:
		c.reals = c.reals[n:]
	}
}

// nextPage reads the next page if no rows remain.
func (c *column) nextPage() error {
	for c.left() == 0 {
		c.release()
		p, err := c.pages.ReadPage()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			c.page = p
			err = c.take(p)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func (c *column) take(p parquet.Page) error {
	rows := int(p.NumRows())
	if !c.null && int(p.NumValues()) != rows {
		return errNotSegment
	}
	data := p.Data()
	kind := p.Type().Kind()
	if d := p.Dictionary(); d != nil {
		if d != c.dict {
			c.readDictionary(d, kind)
		}
		return c.indexed(data.Int32(), kind, rows)
	}
	switch {
	case kind == parquet.ByteArray && c.names != nil:
		text, ends := data.ByteArray()
		if len(ends) != rows+1 {
			return errNotSegment
		}
		c.ids = grown(&c.idBuf, rows)
		for i := range rows {
			c.ids[i] = c.names.of(text[ends[i]:ends[i+1]])
		}
	case kind == parquet.Int64 && c.names == nil:
		c.whole = data.Int64()
	case kind == parquet.Int32 && c.names == nil:
		c.whole = grown(&c.inBuf, rows)
		for i, v := range data.Int32() {
			c.whole[i] = int64(v)
		}
	case kind == parquet.Float && c.null && p.NumNulls() > 0:
		return c.sparse(p, data.Float(), rows)
	case kind == parquet.Float && c.names == nil:
		c.reals = data.Float()
	default:
		return fmt.Errorf("%w: %v", errNotSegment, p.Type())
	}
	if c.left() != rows {
		return errNotSegment
	}
	return nil
}

// readDictionary reads a dictionary.
func (c *column) readDictionary(d parquet.Dictionary, kind parquet.Kind) {
	c.dict, c.known, c.values = d, c.known[:0], c.values[:0]
	for i := range d.Len() {
		switch v := d.Index(int32(i)); kind {
		case parquet.ByteArray:
			if c.names != nil {
				c.known = append(c.known, c.names.of(v.ByteArray()))
			}
		case parquet.Int32:
			c.values = append(c.values, int64(v.Int32()))
		case parquet.Int64:
			c.values = append(c.values, v.Int64())
		}
	}
}

// indexed reads a page of dictionary indices.
func (c *column) indexed(indexes []int32, kind parquet.Kind, rows int) error {
	if len(indexes) != rows {
		return errNotSegment
	}
	if kind == parquet.ByteArray && c.names != nil {
		c.ids = grown(&c.idBuf, rows)
		for i, k := range indexes {
			if uint(k) >= uint(len(c.known)) {
				return errNotSegment
			}
			c.ids[i] = c.known[k]
		}
		return nil
	}
	c.whole = grown(&c.inBuf, rows)
	for i, k := range indexes {
		if uint(k) >= uint(len(c.values)) {
			return errNotSegment
		}
		c.whole[i] = c.values[k]
	}
	return nil
}

// sparse reads a page with missing values.
func (c *column) sparse(p parquet.Page, values []float32, rows int) error {
	defined := p.DefinitionLevels()
	if len(defined) != rows {
		return errNotSegment
	}
	c.reals = grown(&c.reBuf, rows)
	k := 0
	for i, level := range defined {
		c.reals[i] = float32(math.NaN())
		if level > 0 {
			if k == len(values) {
				return errNotSegment
			}
			c.reals[i] = values[k]
			k++
		}
	}
	return nil
}

// grown returns the first n elements of a buffer, which it enlarges if needed.
func grown[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	return (*buf)[:n]
}
