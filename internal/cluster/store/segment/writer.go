package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

const (
	// groupRows bounds a row group and thus the memory of a Writer and, per file, of a
	// merge: some 5 MB and the names. Readers skip whole row groups.
	groupRows = 1 << 17
	// groupText bounds its names, bytes: those of most groups have some MB. An agent may report a
	// new name of a page's length with each sample.
	groupText = 32 << 20
	// pageRows is the number of rows in all pages of a row group but the last: a merge
	// holds that many of each file.
	pageRows = 1 << 15
	// alignedKey is the metadata key that declares this.
	alignedKey = "quell.pages"
	aligned    = "aligned"
)

// magic is the start and end of a file.
const magic = "PAR1"

// Writer writes one file. The caller must add series in order, and the samples of each in
// time order. After an error it writes nothing more, and Close returns the error.
type Writer struct {
	out    io.Writer
	at     int64 // in the file
	err    error
	layout *layout
	// groupRows, groupText and pageRows are the constants; tests have smaller ones.
	groupRows, groupText, pageRows int

	group  group
	series Series       // of the next samples
	place  [texts]int32 // indices of series in the group's dictionaries

	groups []format.RowGroup
	rows   int64

	codec  *zstd.Encoder
	plain  []byte // a page before compression
	packed []byte // and after compression
	levels []byte
	ints   []int32
	header bytes.Buffer
}

// layout is the schema as in a file's metadata.
type layout struct {
	meta *format.FileMetaData
	at   map[string]int // leaf columns by name
}

// newLayout takes the schema from an empty file of traces.
func newLayout() (*layout, error) {
	var b bytes.Buffer
	empty := parquet.NewGenericWriter[trace.Row](&b, trace.Options()...)
	if err := empty.Close(); err != nil {
		return nil, fmt.Errorf("make schema: %w", err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		return nil, fmt.Errorf("make schema: %w", err)
	}
	l := &layout{meta: f.Metadata(), at: map[string]int{}}
	for i, e := range l.meta.Schema[1:] { // the first is the root, all others are leaves
		l.at[e.Name] = i
	}
	return l, nil
}

// NewWriter returns a Writer without a file: call Reset first.
func NewWriter() (*Writer, error) {
	l, err := newLayout()
	if err != nil {
		return nil, err
	}
	codec, err := newCodec(level)
	if err != nil {
		return nil, err
	}
	w := &Writer{layout: l, groupRows: groupRows, groupText: groupText, pageRows: pageRows, codec: codec}
	for i := range w.group.names {
		w.group.names[i].places = map[string]int32{}
	}
	w.group.extras = make([][]float64, len(sample.AllExtras()))
	return w, nil
}

// level is the fastest level of zstd. BenchmarkLevel reports the cost and the gain of the
// next one.
const level = zstd.SpeedFastest

// window is the window size of a page's compression. zstd's default would take 8 MB of
// memory.
const window = 1 << 20

func newCodec(l zstd.EncoderLevel) (*zstd.Encoder, error) {
	codec, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(l), zstd.WithWindowSize(window),
		zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("make compressor: %w", err)
	}
	return codec, nil
}

// Reset starts a new file in any state of the last one. It reuses memory.
func (w *Writer) Reset(out io.Writer) {
	w.out, w.at, w.err, w.rows = out, 0, nil, 0
	w.groups = w.groups[:0]
	w.group.clear()
	w.put([]byte(magic))
}

// put writes raw bytes.
func (w *Writer) put(b []byte) {
	if w.err != nil {
		return
	}
	n, err := w.out.Write(b)
	w.at += int64(n)
	w.err = err
}

// Series sets the series of the next samples.
func (w *Writer) Series(s *Series) {
	if len(w.group.ts) == w.groupRows || w.group.text() > w.groupText { // else its names would be in a group without its rows
		w.flush()
	}
	w.series = *s
	w.enter()
}

// enter looks up the series in the group's dictionaries.
func (w *Writer) enter() {
	for i := range w.series {
		w.place[i] = w.group.names[i].of(w.series[i])
	}
}

// Row adds a sample of the series; a cost of NaN is null. extras may be nil.
func (w *Writer) Row(ts int64, cpu, cost, coverage float32, flags sample.Flags, extras *sample.Extras) {
	g := w.room()
	g.ts, g.cpu, g.cost = append(g.ts, ts), append(g.cpu, cpu), append(g.cost, cost)
	g.coverage, g.flags = append(g.coverage, coverage), append(g.flags, int32(flags))
	if extras != nil && extras.Len() > 0 {
		for e := range g.extras {
			if v, ok := extras.Get(sample.Extra(e)); ok {
				g.extra(e, len(g.ts)-1)
				g.extras[e] = append(g.extras[e], v)
			}
		}
	}
	g.extend(&w.place, 1)
}

// room returns the group with room for a row.
func (w *Writer) room() *group {
	if len(w.group.ts) == w.groupRows {
		w.flush()
		w.enter()
	}
	return &w.group
}

// copy adds rows of a block, all of the current series.
func (w *Writer) copy(b *Block, from, to int) {
	for from < to {
		g := w.room()
		n := min(to-from, w.groupRows-len(g.ts))
		had := len(g.ts)
		g.ts = append(g.ts, b.TS[from:from+n]...)
		g.cpu, g.cost = append(g.cpu, b.CPU[from:from+n]...), append(g.cost, b.Cost[from:from+n]...)
		g.coverage, g.flags = append(g.coverage, b.Coverage[from:from+n]...), append(g.flags, b.Flags[from:from+n]...)
		for e := range b.Extras {
			if b.Extras[e] != nil {
				g.extra(e, had)
				g.extras[e] = append(g.extras[e], b.Extras[e][from:from+n]...)
			}
		}
		g.extend(&w.place, n)
		from += n
	}
}

// Close writes the rest of the file. It does not close the underlying writer.
func (w *Writer) Close() error {
	w.flush()
	meta := *w.layout.meta
	meta.RowGroups, meta.NumRows = w.groups, w.rows
	meta.KeyValueMetadata = append(meta.KeyValueMetadata[:len(meta.KeyValueMetadata):len(meta.KeyValueMetadata)],
		format.KeyValue{Key: alignedKey, Value: aligned})
	footer := w.encode(&meta)
	w.put(footer)
	w.put(binary.LittleEndian.AppendUint32(nil, uint32(len(footer))))
	w.put([]byte(magic))
	if w.err != nil {
		return fmt.Errorf("write segment: %w", w.err)
	}
	return nil
}

// encode encodes a structure as Parquet metadata.
func (w *Writer) encode(v any) []byte {
	w.header.Reset()
	if err := thrift.NewEncoder(new(thrift.CompactProtocol).NewWriter(&w.header)).Encode(v); err != nil && w.err == nil {
		w.err = err
	}
	return w.header.Bytes()
}

// group is a row group in memory.
type group struct {
	ts        []int64
	cpu, cost []float32
	coverage  []float32
	flags     []int32
	extras    [][]float64 // by sample.Extra; NaN if missing; shorter than ts: NaN from there on
	names     [texts]names
	runs      []run
}

// text is the size of the names.
func (g *group) text() (n int) {
	for i := range g.names {
		n += len(g.names[i].text)
	}
	return n
}

// run is a number of consecutive rows of one series, given by its indices in the
// dictionaries.
type run struct {
	place [texts]int32
	n     int
}

func (g *group) clear() {
	g.ts, g.cpu, g.cost, g.coverage, g.flags, g.runs = g.ts[:0], g.cpu[:0], g.cost[:0], g.coverage[:0], g.flags[:0], g.runs[:0]
	for e := range g.extras {
		g.extras[e] = g.extras[e][:0]
	}
	for i := range g.names {
		g.names[i].clear()
	}
}

// extend adds n rows to the current run or starts a new one.
func (g *group) extend(place *[texts]int32, n int) {
	if k := len(g.runs); k > 0 && g.runs[k-1].place == *place {
		g.runs[k-1].n += n
		return
	}
	g.runs = append(g.runs, run{*place, n})
}

// extra pads an optional column up to a row.
func (g *group) extra(e, row int) {
	for len(g.extras[e]) < row {
		g.extras[e] = append(g.extras[e], math.NaN())
	}
}

// names is a dictionary of texts, encoded as in Parquet.
type names struct {
	places   map[string]int32
	text     []byte // each preceded by its length
	min, max string
	last     string
	at       int32 // of last
}

func (d *names) of(s string) int32 {
	if s == d.last && len(d.places) > 0 {
		return d.at
	}
	place, ok := d.places[s]
	if !ok {
		place = int32(len(d.places))
		if place == 0 || s < d.min {
			d.min = s
		}
		if place == 0 || s > d.max {
			d.max = s
		}
		d.places[s] = place
		d.text = binary.LittleEndian.AppendUint32(d.text, uint32(len(s)))
		d.text = append(d.text, s...)
	}
	d.last, d.at = s, place
	return place
}

func (d *names) clear() {
	clear(d.places)
	d.text, d.min, d.max, d.last = d.text[:0], "", "", ""
}
