package parquet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// texts are the columns of names in the order in which a Reader keeps them.
var texts = [...]string{"machine", "job", "task", "platform", "signal", "variant", "class"}

// Reader reads samples from Parquet in the order of the file. The file is quell's or
// has the same columns, in any order, null or not. Rows that hold no sample are counted
// and skipped; a damaged row group costs its rows from there on. Memory is bounded by a
// page for each column and the distinct names.
type Reader struct {
	trace.Contents
	file   *File
	groups []parquet.RowGroup
	left   int64 // rows of the open group
	row    int64 // of the file, read next
	all    []*column
	ts     *column
	unit   time.Duration // of ts
	names  [len(texts)]*column
	values [4]*column // cpu, cost, coverage, flags
	extras []extraColumn
	served *column

	texts   [len(texts)][]string
	times   []int64
	numbers [4][]float64    // of values
	ready   []sample.Sample // read, not yet given out
	buffer  []sample.Sample
	lists   trace.ServedReader
	listed  bool          // some of buffer have Served
	wrong   map[int]error // by row of the batch: why its served cannot be read
	interns trace.Names
	check   func(*sample.Sample) error
	class   struct { // the one parsed last
		text string
		is   sample.Class
	}
}

type extraColumn struct {
	extra sample.Extra
	*column
}

// NewReader opens a file of the given size in bytes. It fails with
// trace.ErrHeader if a column that every sample needs is missing.
func NewReader(r io.ReaderAt, size int64) (t *Reader, err error) {
	defer recovered(&err)
	f, err := Open(r, size, parquet.ReadBufferSize(1<<18))
	if err != nil {
		return nil, err
	}
	t = &Reader{file: f, groups: f.RowGroups(), interns: trace.Names{}, check: trace.CheckValues}
	known := map[string]bool{}
	open := func(name string, needed bool) *column {
		known[name] = true
		c := &column{name: name, leaf: -1, intern: t.intern}
		if leaf, ok := f.Schema().Lookup(name); ok && leaf.MaxRepetitionLevel == 0 {
			c.leaf, c.levels = leaf.ColumnIndex, leaf.MaxDefinitionLevel
			t.all = append(t.all, c)
		} else if needed {
			err = errors.Join(err, fmt.Errorf("read Parquet: %w: no column %s", trace.ErrHeader, name))
		}
		return c
	}
	t.ts, t.unit = open("ts", true), time.Millisecond
	if leaf, ok := f.Schema().Lookup("ts"); ok { // quell query and DuckDB write µs
		if of := leaf.Node.Type().LogicalType(); of != nil {
			if at, ok := of.Value.(*format.TimestampType); ok && at.Unit.Value != nil {
				t.unit = at.Unit.Value.Duration()
			}
		}
	}
	for i, name := range texts {
		t.names[i] = open(name, name == "task" || name == "signal")
	}
	t.values = [...]*column{open("cpu", true), open("cost", true), open("coverage", false), open("flags", false)}
	for _, e := range sample.AllExtras() {
		if c := open(e.String(), false); c.leaf >= 0 {
			t.extras = append(t.extras, extraColumn{e, c})
		}
	}
	t.served, t.lists.Intern = open(trace.ServedColumn, false), t.intern
	t.served.intern = func(b []byte) string { return string(b) } // few are equal
	rows := f.NumRows()
	for _, g := range t.groups {
		if rows -= g.NumRows(); g.NumRows() < 0 || rows < 0 {
			err = errors.Join(err, errors.New("read Parquet: damaged: row counts of the row groups do not match the file"))
			break
		}
	}
	if err != nil {
		return nil, err
	}
	for _, path := range f.Schema().Columns() {
		if len(path) != 1 || !known[path[0]] {
			t.Found.Unknown = append(t.Found.Unknown, fmt.Sprint(path[0]))
		}
	}
	for key, list := range map[string]any{labelsKey: &t.Known, unlabelledKey: &t.Unknown} {
		if text, ok := f.Lookup(key); ok {
			t.Labelled = true
			if err := json.Unmarshal([]byte(text), list); err != nil {
				return nil, fmt.Errorf("read Parquet: labels: %w", err)
			}
		}
	}
	for i := range t.texts {
		t.texts[i] = make([]string, batch)
	}
	for i := range t.numbers {
		t.numbers[i] = make([]float64, batch)
	}
	t.times, t.buffer = make([]int64, batch), make([]sample.Sample, batch)
	return t, nil
}

// recovered converts a panic of the library over a damaged file to an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("read Parquet: damaged: %v", p)
	}
}

// Progress returns how much of the file was read, 0 to 1.
func (r *Reader) Progress() float64 {
	return float64(r.row) / float64(max(r.file.NumRows(), 1))
}

// Close releases what is open in the file, which stays the caller's.
func (r *Reader) Close() {
	r.left, r.groups, r.ready = 0, nil, nil
	for _, c := range r.all {
		c.close()
	}
}

// Read reads the next sample into s, overwriting all of it, or returns io.EOF.
func (r *Reader) Read(s *sample.Sample) error {
	for len(r.ready) == 0 {
		some, err := r.Next()
		if err != nil {
			return err
		}
		r.ready = some
	}
	*s, r.ready = r.ready[0], r.ready[1:]
	return nil
}

// Next returns the next samples of the file, any number and possibly none, or io.EOF.
// They are valid until the next call. It is Read without its copy: use only one of the
// two.
func (r *Reader) Next() ([]sample.Sample, error) {
	for r.left == 0 {
		if len(r.groups) == 0 {
			return nil, io.EOF
		}
		for _, c := range r.all {
			c.close()
		}
		r.left = r.groups[0].NumRows()
		if err := r.begin(); err != nil {
			r.lose(err)
		}
		r.groups = r.groups[1:]
	}
	n := int(min(r.left, batch))
	if err := r.fill(n); err != nil {
		r.lose(err)
		return nil, nil
	}
	good := 0
	for i := range n {
		if err := r.assemble(&r.buffer[i], i); err != nil {
			r.bad(r.row+int64(i), 1, err)
			continue
		}
		if good != i {
			r.buffer[good] = r.buffer[i]
		}
		good++
	}
	r.left -= int64(n)
	r.row += int64(n)
	r.Found.Rows += good
	return r.buffer[:good], nil
}

func (r *Reader) begin() (err error) {
	defer recovered(&err)
	group := len(r.file.Metadata().RowGroups) - len(r.groups)
	for _, c := range r.all {
		if err := r.file.CheckPages(group, c.leaf); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	for _, c := range r.all {
		c.open(r.groups[0])
	}
	return nil
}

// lose gives up the rest of a row group.
func (r *Reader) lose(err error) {
	r.bad(r.row, r.left, err)
	r.row += r.left
	r.left = 0
}

func (r *Reader) bad(row, rows int64, err error) {
	if rows == 1 {
		r.Found.Skip(1, "row %d: %v", row+1, err)
	} else {
		r.Found.Skip(int(rows), "rows %d to %d: %v", row+1, row+rows, err)
	}
}

// fill reads n rows of all columns.
func (r *Reader) fill(n int) (err error) {
	defer recovered(&err)
	if err := r.ts.whole(r.times[:n]); err != nil {
		return err
	}
	for i, c := range r.names {
		if err := c.strings(r.texts[i][:n]); err != nil {
			return err
		}
	}
	for i, c := range r.values {
		if err := c.floats(r.numbers[i][:n]); err != nil {
			return err
		}
	}
	for i := range n {
		r.buffer[i].Extras = sample.Extras{}
	}
	for _, x := range r.extras {
		if err := x.some(n, func(i int, v float64) {
			if v == v {
				r.buffer[i].Extras.Set(x.extra, v)
			}
		}); err != nil {
			return err
		}
	}
	if r.listed {
		for i := range r.buffer {
			r.buffer[i].Served = nil
		}
		r.listed, r.wrong = false, nil
	}
	return r.served.texts(n, func(i int, text []byte) {
		var err error
		if r.buffer[i].Served, err = r.lists.Read(text); err != nil {
			if r.wrong == nil {
				r.wrong = map[int]error{}
			}
			r.wrong[i] = err
		}
		r.listed = true
	})
}

// assemble makes the sample of the i-th row read; its extras and served tasks are set
// already.
func (r *Reader) assemble(s *sample.Sample, i int) error {
	if r.wrong != nil && r.wrong[i] != nil {
		return fmt.Errorf("%s: %w", trace.ServedColumn, r.wrong[i])
	}
	class := r.texts[6][i]
	if class != r.class.text {
		is, err := sample.ParseClass(class)
		if err != nil && class != "" {
			return err
		}
		r.class.text, r.class.is = class, is
	}
	per := time.Millisecond / r.unit // ns from a dictionary are some too few or too many
	s.TS = sample.Millis(time.Duration(r.times[i]).Round(per) / per)
	s.Machine, s.Job, s.Task = r.texts[0][i], sample.JobName(r.texts[1][i]), sample.TaskName(r.texts[2][i])
	s.Platform, s.Signal, s.Variant = sample.Platform(r.texts[3][i]), sample.SignalName(r.texts[4][i]), r.texts[5][i]
	s.Class = r.class.is
	s.CPU, s.Cost = float32(r.numbers[0][i]), float32(r.numbers[1][i])
	s.Coverage, s.Flags = 1, 0
	if v := r.numbers[2][i]; v == v {
		s.Coverage = float32(v)
	}
	if v := r.numbers[3][i]; v == v {
		if s.Flags = sample.Flags(v); v != float64(s.Flags) || s.Flags > sample.AllFlags {
			return fmt.Errorf("flags %v: unknown bits", v)
		}
	}
	if r.times[i] == math.MinInt64 {
		return errors.New("no ts")
	}
	return r.check(s)
}

func (r *Reader) intern(b []byte) string {
	known := len(r.interns)
	s := r.interns.Intern(b)
	if len(r.interns) > known && strings.ContainsAny(s, "\n\r") {
		r.check = trace.Check // checks names too
	}
	return s
}
