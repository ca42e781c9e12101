package parquet

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/parquet-go/parquet-go"
)

// column reads one column of a file, row group after row group, a page at a
// time. A column that the file lacks gives nulls.
type column struct {
	name   string
	leaf   int // in the schema; −1: not there
	levels int // at which a value is present; 0 for a required column
	intern func([]byte) string

	pages   parquet.Pages
	page    parquet.Page
	rows    int    // left in the page
	defined []byte // their levels; nil for a required column
	blank   bool   // no row of the page has a value
	next    int    // value of the page that is read next

	// What the page holds: indexes into a dictionary, or one of the kinds.
	indexes []int32
	ints    []int64
	int32s  []int32
	f32s    []float32
	f64s    []float64
	text    []byte
	ends    []uint32
	// dict is the dictionary from which names or numbers were made.
	dict    parquet.Dictionary
	names   []string
	numbers []float64
}

// errColumnType means that a column holds another type than a sample has there, or that its
// pages are malformed.
var errColumnType = errors.New("wrong column type")

// open begins a row group.
func (c *column) open(g parquet.RowGroup) {
	if c.leaf >= 0 {
		c.pages = g.ColumnChunks()[c.leaf].Pages()
	}
}

func (c *column) close() {
	c.release()
	if c.pages != nil {
		_ = c.pages.Close() // it was only read
		c.pages = nil
	}
	c.rows, c.dict = 0, nil
}

func (c *column) release() {
	if c.page != nil {
		parquet.Release(c.page)
	}
	c.blank = false
	c.page, c.defined, c.indexes, c.ints, c.int32s, c.f32s, c.f64s, c.text, c.ends = nil, nil, nil, nil, nil, nil, nil, nil, nil
}

// nextPage continues with the next page that has rows, if this one has none left.
func (c *column) nextPage() error {
	for c.rows == 0 {
		c.release()
		p, err := c.pages.ReadPage()
		if err == io.EOF {
			return fmt.Errorf("%s: %w", c.name, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		c.page, c.rows, c.next = p, int(p.NumRows()), 0
		c.blank = false
		if c.levels > 0 {
			c.defined = p.DefinitionLevels()
			c.blank = p.NumNulls() == p.NumValues()
		}
		values := p.Data()
		if d := p.Dictionary(); d != nil {
			c.indexes = values.Int32()
			if d != c.dict {
				c.readDictionary(d)
			}
			continue
		}
		switch p.Type().Kind() {
		case parquet.Int32:
			c.int32s = values.Int32()
		case parquet.Int64:
			c.ints = values.Int64()
		case parquet.Float:
			c.f32s = values.Float()
		case parquet.Double:
			c.f64s = values.Double()
		case parquet.ByteArray:
			c.text, c.ends = values.ByteArray()
		default:
			return fmt.Errorf("%s: %w: %v", c.name, errColumnType, p.Type())
		}
	}
	return nil
}

// readDictionary stores the values of a dictionary.
func (c *column) readDictionary(d parquet.Dictionary) {
	c.dict, c.names, c.numbers = d, c.names[:0], c.numbers[:0]
	for i := range d.Len() {
		switch v := d.Index(int32(i)); v.Kind() {
		case parquet.ByteArray:
			c.names = append(c.names, c.intern(v.ByteArray()))
		case parquet.Int32:
			c.numbers = append(c.numbers, float64(v.Int32()))
		case parquet.Int64:
			c.numbers = append(c.numbers, float64(v.Int64()))
		case parquet.Float:
			c.numbers = append(c.numbers, float64(v.Float()))
		case parquet.Double:
			c.numbers = append(c.numbers, v.Double())
		}
	}
}

// each calls fill for n rows in total, part by part; a part is within one page. For a
// column that the file lacks nothing is filled.
func (c *column) each(n int, fill func(at, n int) bool) error {
	if c.leaf < 0 {
		return nil
	}
	for at := 0; at < n; {
		if err := c.nextPage(); err != nil {
			return err
		}
		k := min(n-at, c.rows)
		if !fill(at, k) {
			return fmt.Errorf("%s: %w", c.name, errColumnType)
		}
		if at, c.rows = at+k, c.rows-k; c.defined != nil {
			c.defined = c.defined[k:]
		}
	}
	return nil
}

// null reports whether the i-th of the rows left in the page has no value.
func (c *column) null(i int) bool {
	return c.defined != nil && int(c.defined[i]) < c.levels
}

// strings fills dst; a null is "".
func (c *column) strings(dst []string) error {
	if c.leaf < 0 {
		clear(dst)
		return nil
	}
	return c.each(len(dst), func(at, n int) bool {
		if c.defined == nil && c.next+n <= len(c.indexes) {
			for i, id := range c.indexes[c.next : c.next+n] {
				if uint(id) >= uint(len(c.names)) {
					return false
				}
				dst[at+i] = c.names[id]
			}
			c.next += n
			return true
		}
		for i := range n {
			if c.null(i) {
				dst[at+i] = ""
				continue
			}
			k := c.next
			c.next++
			switch {
			case k < len(c.indexes):
				id := c.indexes[k]
				if uint(id) >= uint(len(c.names)) {
					return false
				}
				dst[at+i] = c.names[id]
			case k+1 < len(c.ends):
				dst[at+i] = c.intern(c.text[c.ends[k]:c.ends[k+1]])
			default:
				return false
			}
		}
		return true
	})
}

// number returns the next value of the page; false if there is none.
func (c *column) number() (float64, bool) {
	k := c.next
	c.next++
	switch {
	case k < len(c.f32s):
		return float64(c.f32s[k]), true
	case k < len(c.f64s):
		return c.f64s[k], true
	case k < len(c.indexes):
		if id := c.indexes[k]; uint(id) < uint(len(c.numbers)) {
			return c.numbers[id], true
		}
	case k < len(c.int32s):
		return float64(c.int32s[k]), true
	case k < len(c.ints):
		return float64(c.ints[k]), true
	}
	return 0, false
}

// floats fills dst; a null is NaN.
func (c *column) floats(dst []float64) error {
	if c.leaf < 0 {
		for i := range dst {
			dst[i] = math.NaN()
		}
		return nil
	}
	return c.each(len(dst), func(at, n int) (ok bool) {
		if c.defined == nil && c.next+n <= len(c.f32s) {
			for i, v := range c.f32s[c.next : c.next+n] {
				dst[at+i] = float64(v)
			}
			c.next += n
			return true
		}
		for i := range n {
			if c.null(i) {
				dst[at+i] = math.NaN()
			} else if dst[at+i], ok = c.number(); !ok {
				return false
			}
		}
		return true
	})
}

// some calls set with the values that n rows have, and their positions.
func (c *column) some(n int, set func(i int, v float64)) error {
	return c.each(n, func(at, n int) bool {
		if c.blank {
			return true
		}
		for i := range n {
			if c.null(i) {
				continue
			}
			v, ok := c.number()
			if !ok {
				return false
			}
			set(at+i, v)
		}
		return true
	})
}

// texts calls set with the texts that n rows have, and their positions.
func (c *column) texts(n int, set func(i int, text []byte)) error {
	return c.each(n, func(at, n int) bool {
		if c.blank {
			return true
		}
		for i := range n {
			if c.null(i) {
				continue
			}
			k := c.next
			c.next++
			switch {
			case k < len(c.indexes) && uint(c.indexes[k]) < uint(len(c.names)):
				set(at+i, []byte(c.names[c.indexes[k]]))
			case k+1 < len(c.ends):
				set(at+i, c.text[c.ends[k]:c.ends[k+1]])
			default:
				return false
			}
		}
		return true
	})
}

// whole fills dst with integers; a null is the smallest of them.
func (c *column) whole(dst []int64) error {
	return c.each(len(dst), func(at, n int) bool {
		for i := range n {
			if c.null(i) {
				dst[at+i] = math.MinInt64
				continue
			}
			k := c.next
			c.next++
			switch {
			case k < len(c.ints):
				dst[at+i] = c.ints[k]
			case k < len(c.int32s):
				dst[at+i] = int64(c.int32s[k])
			case k < len(c.indexes) && uint(c.indexes[k]) < uint(len(c.numbers)):
				dst[at+i] = int64(c.numbers[c.indexes[k]]) // exact below 2⁵³
			default:
				return false
			}
		}
		return true
	})
}
