package segment

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/parquet-go/parquet-go/encoding/delta"
	"github.com/parquet-go/parquet-go/encoding/rle"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/quell-dev/quell/internal/core/sample"
)

// flush writes the group, if it has rows, and empties it.
func (w *Writer) flush() {
	g := &w.group
	n := len(g.ts)
	if n == 0 {
		return
	}
	rg := format.RowGroup{Columns: make([]format.ColumnChunk, len(w.layout.at)), NumRows: int64(n), SortingColumns: w.layout.sorting(),
		FileOffset: w.at, Ordinal: int16(len(w.groups))}
	column := func(name string) *chunk {
		c := &rg.Columns[w.layout.at[name]]
		c.MetaData.PathInSchema = []string{name}
		c.MetaData.Codec, c.MetaData.NumValues = format.Zstd, int64(n)
		return &chunk{w: w, meta: &c.MetaData}
	}
	column("ts").times(g.ts)
	for i, name := range textNames() {
		column(name).texts(g, i)
	}
	column("cpu").floats(g.cpu, false)
	column("cost").floats(g.cost, true)
	column("coverage").places(g.coverage)
	column("flags").bits(g.flags)
	for e := range g.extras {
		c := column(sample.Extra(e).String())
		if len(g.extras[e]) > 0 {
			g.extra(e, n)
		}
		c.doubles(g.extras[e], n)
	}
	for i := range rg.Columns {
		rg.TotalByteSize += rg.Columns[i].MetaData.TotalUncompressedSize
		rg.TotalCompressedSize += rg.Columns[i].MetaData.TotalCompressedSize
	}
	w.groups = append(w.groups, rg)
	w.rows += int64(n)
	g.clear()
}

// chunk is a column of a row group that is being written.
type chunk struct {
	w     *Writer
	meta  *format.ColumnMetaData
	nulls int64 // of the next page
}

// page compresses w.plain and writes it as a page.
func (c *chunk) page(h *format.PageHeader) {
	w := c.w
	packed := w.codec.EncodeAll(w.plain, w.packed[:0])
	w.packed = packed
	h.UncompressedPageSize, h.CompressedPageSize = int32(len(w.plain)), int32(len(packed))
	head := w.encode(h)
	w.put(head)
	w.put(packed)
	c.meta.TotalUncompressedSize += int64(len(head) + len(w.plain))
	c.meta.TotalCompressedSize += int64(len(head) + len(packed))
}

// data writes w.plain as a data page of n rows.
func (c *chunk) data(n int, enc format.Encoding) {
	if c.meta.DataPageOffset == 0 {
		c.meta.DataPageOffset = c.w.at
	}
	c.page(&format.PageHeader{Type: format.DataPage, DataPageHeader: thrift.New(format.DataPageHeader{NumValues: int32(n), Encoding: enc,
		DefinitionLevelEncoding: format.RLE, RepetitionLevelEncoding: format.RLE, Statistics: format.Statistics{NullCount: c.nulls}})})
	c.meta.Statistics.NullCount += c.nulls
	c.nulls = 0
}

// dictionary writes w.plain as the dictionary page of n values.
func (c *chunk) dictionary(n int) {
	c.meta.DictionaryPageOffset = c.w.at
	c.meta.Encoding = []format.Encoding{format.Plain, format.RLE, format.RLEDictionary}
	c.page(&format.PageHeader{Type: format.DictionaryPage, DictionaryPageHeader: thrift.New(format.DictionaryPageHeader{NumValues: int32(n), Encoding: format.Plain})})
}

// bounds sets the statistics by which readers skip row groups. Empty means absent.
func (c *chunk) bounds(low, high []byte) {
	if len(low) > 0 && len(high) > 0 {
		c.meta.Statistics.MinValue, c.meta.Statistics.MaxValue = low, high
	}
}

// pages calls fill for the rows of each page of n rows.
func (w *Writer) pages(n int, fill func(from, to int)) {
	for from := 0; from < n; from += w.pageRows {
		fill(from, min(n, from+w.pageRows))
	}
}

func (c *chunk) fail(err error) {
	if err != nil && c.w.err == nil {
		c.w.err = err
	}
}

func (c *chunk) times(ts []int64) {
	c.meta.Type, c.meta.Encoding = format.Int64, []format.Encoding{format.RLE, format.DeltaBinaryPacked}
	c.bounds(binary.LittleEndian.AppendUint64(nil, uint64(slices.Min(ts))), binary.LittleEndian.AppendUint64(nil, uint64(slices.Max(ts))))
	var enc delta.BinaryPackedEncoding
	c.w.pages(len(ts), func(from, to int) {
		var err error
		c.w.plain, err = enc.EncodeInt64(c.w.plain[:0], ts[from:to])
		c.fail(err)
		c.data(to-from, format.DeltaBinaryPacked)
	})
}

// texts writes one of the columns of a series.
func (c *chunk) texts(g *group, i int) {
	d, w := &g.names[i], c.w
	c.meta.Type = format.ByteArray
	c.bounds([]byte(d.min), []byte(d.max))
	w.plain = append(w.plain[:0], d.text...)
	c.dictionary(len(d.places))
	at, left := 0, 0 // the current run, and its remaining rows
	if len(g.runs) > 0 {
		left = g.runs[0].n
	}
	w.pages(len(g.ts), func(from, to int) {
		w.ints = w.ints[:0]
		for need := to - from; need > 0; {
			if left == 0 {
				at++
				left = g.runs[at].n
			}
			n := min(need, left)
			place := g.runs[at].place[i]
			for range n {
				w.ints = append(w.ints, place)
			}
			need, left = need-n, left-n
		}
		c.indexes(w.ints)
	})
}

// indexes writes a page of dictionary indices.
func (c *chunk) indexes(places []int32) {
	var enc rle.DictionaryEncoding
	var err error
	c.w.plain, err = enc.EncodeInt32(c.w.plain[:0], places)
	c.fail(err)
	c.data(len(places), format.RLEDictionary)
}

// floats writes numbers; NaN is null in a nullable column.
func (c *chunk) floats(values []float32, nullable bool) {
	w := c.w
	c.meta.Type, c.meta.Encoding = format.Float, []format.Encoding{format.Plain, format.RLE}
	low, high := float32(math.Inf(1)), float32(math.Inf(-1))
	w.pages(len(values), func(from, to int) {
		w.plain = w.plain[:0]
		if nullable {
			defined(c, values[from:to])
		}
		for _, v := range values[from:to] {
			if v != v && nullable {
				continue
			}
			low, high = min(low, v), max(high, v) // NaN propagates
			w.plain = binary.LittleEndian.AppendUint32(w.plain, math.Float32bits(v))
		}
		c.data(to-from, format.Plain)
	})
	c.floatBounds(low, high)
}

// floatBounds sets the bounds of numbers; a NaN among them, or no number, means none.
func (c *chunk) floatBounds(low, high float32) {
	if low <= high {
		c.bounds(binary.LittleEndian.AppendUint32(nil, math.Float32bits(low)), binary.LittleEndian.AppendUint32(nil, math.Float32bits(high)))
	}
}

// defined starts a page with its levels: which rows have a value, and are not NaN.
func defined[T float32 | float64](c *chunk, values []T) {
	w := c.w
	w.levels = w.levels[:0]
	for _, v := range values {
		level := byte(1)
		if v != v {
			level = 0
			c.nulls++
		}
		w.levels = append(w.levels, level)
	}
	enc := rle.Encoding{BitWidth: 1}
	bits, err := enc.EncodeLevels(w.packed[:0], w.levels)
	c.fail(err)
	w.packed = bits
	w.plain = binary.LittleEndian.AppendUint32(w.plain, uint32(len(bits)))
	w.plain = append(w.plain, bits...)
}

// doubles writes an optional column of n rows; NaN is null. Without values all rows are
// null, in one page.
func (c *chunk) doubles(values []float64, n int) {
	w := c.w
	c.meta.Type, c.meta.Encoding = format.Double, []format.Encoding{format.Plain, format.RLE}
	if len(values) == 0 {
		// The levels are one run: its length times two, and the level.
		run := append(binary.AppendUvarint(w.levels[:0], uint64(n)<<1), 0)
		w.plain = append(binary.LittleEndian.AppendUint32(w.plain[:0], uint32(len(run))), run...)
		c.nulls = int64(n)
		c.data(n, format.Plain)
		return
	}
	w.pages(n, func(from, to int) {
		w.plain = w.plain[:0]
		defined(c, values[from:to])
		for _, v := range values[from:to] {
			if v == v {
				w.plain = binary.LittleEndian.AppendUint64(w.plain, math.Float64bits(v))
			}
		}
		c.data(to-from, format.Plain)
	})
}

// places writes numbers with few distinct values.
func (c *chunk) places(values []float32) {
	c.meta.Type = format.Float
	c.floatBounds(slices.Min(values), slices.Max(values))
	c.few(len(values), func(i int) uint32 { return math.Float32bits(values[i]) })
}

// bits writes flags.
func (c *chunk) bits(values []int32) {
	c.meta.Type = format.Int32
	c.bounds(binary.LittleEndian.AppendUint32(nil, uint32(slices.Min(values))), binary.LittleEndian.AppendUint32(nil, uint32(slices.Max(values))))
	c.few(len(values), func(i int) uint32 { return uint32(values[i]) })
}

// few writes values of four bytes with a dictionary.
func (c *chunk) few(n int, at func(int) uint32) {
	w := c.w
	w.ints, w.plain = w.ints[:0], w.plain[:0]
	known := map[uint32]int32{}
	last, place := uint32(0), int32(-1)
	for i := range n {
		v := at(i)
		if place < 0 || v != last {
			p, ok := known[v]
			if !ok {
				p = int32(len(known))
				known[v] = p
				w.plain = binary.LittleEndian.AppendUint32(w.plain, v)
			}
			last, place = v, p
		}
		w.ints = append(w.ints, place)
	}
	c.dictionary(len(known))
	all := w.ints
	w.pages(n, func(from, to int) { c.indexes(all[from:to]) })
}
