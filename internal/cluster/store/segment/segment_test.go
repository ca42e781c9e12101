package segment

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

var equal = gocmp.Options{gocmp.AllowUnexported(sample.Extras{}), cmpopts.EquateNaNs()}

// random makes samples of few series and times, so that many are equal.
func random(r *rand.Rand, n int) []sample.Sample {
	name := func(what string, n int) string { return fmt.Sprint(what, r.IntN(n)) }
	all := make([]sample.Sample, n)
	for i := range all {
		s := sample.Sample{TS: 1_790_000_000_000 + sample.Millis(r.IntN(30)), Machine: name("m", 2), Job: sample.JobName(name("j", 2)),
			Task: sample.TaskName(name("/t/ü", 3)), Platform: "p", Signal: sample.CPI, Variant: name("", 1+r.IntN(2)), Class: sample.Batch,
			CPU: r.Float32(), Cost: r.Float32(), Coverage: float32(r.IntN(3)) / 2, Flags: sample.Flags(r.IntN(4))}
		switch r.IntN(10) {
		case 0:
			s.Cost = float32(math.NaN())
		case 1:
			s.Extras.Set(sample.Cycles, r.Float64())
		case 2:
			s.Extras.Set(sample.IOTime, 0)
		}
		all[i] = s
	}
	return all
}

// order is the naive counterpart of all sorting here.
func order(all []sample.Sample) {
	slices.SortStableFunc(all, func(a, b sample.Sample) int {
		var x, y Series
		x.Of(&a)
		y.Of(&b)
		return cmp.Or(Compare(&x, &y), cmp.Compare(a.TS, b.TS))
	})
}

// small returns a Writer of small pages and row groups.
func small(t testing.TB) *Writer {
	w, err := NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	w.groupRows, w.pageRows = 21, 8
	return w
}

// put sorts and writes samples.
func put(w *Writer, all []sample.Sample) {
	order(all)
	putSorted(w, all)
}

func putSorted(w *Writer, all []sample.Sample) {
	var last, now Series
	for i := range all {
		s := &all[i]
		if now.Of(s); i == 0 || now != last {
			last = now
			w.Series(&last)
		}
		w.Row(int64(s.TS), s.CPU, s.Cost, s.Coverage, s.Flags, &s.Extras)
	}
}

func write(t testing.TB, w *Writer, all []sample.Sample) []byte {
	t.Helper()
	var b bytes.Buffer
	w.Reset(&b)
	put(w, all)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// read is the reader of traces, which is independent of segments.
func read(t testing.TB, file []byte) []sample.Sample {
	t.Helper()
	r, err := trace.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	all := []sample.Sample{}
	for {
		var s sample.Sample
		if err := r.Read(&s); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if rep := r.Report(); rep.Bad != 0 || len(rep.Unknown) != 0 {
		t.Errorf("the reader complains: %+v", rep)
	}
	return all
}

func input(t testing.TB, name string, file []byte) Input {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	return Input{name, f}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	w := small(t)
	for _, n := range []int{0, 1, 8, 20, 21, 22, 500} {
		all := random(rand.New(rand.NewPCG(1, uint64(n))), n)
		got := read(t, write(t, w, all))
		if diff := gocmp.Diff(all, got, equal, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%d samples (written −, read +):\n%s", n, diff)
		}
	}
}

// The shipped sizes: more than one row group and an uneven end.
func TestSizes(t *testing.T) {
	w, err := NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	n := groupRows + 2*pageRows + 17
	all := make([]sample.Sample, n)
	for i := range all {
		all[i] = sample.Sample{TS: sample.Millis(i), Machine: "m", Job: "j", Task: sample.TaskName(fmt.Sprintf("/%06d", i/7)), Platform: "p", Signal: "cpi", CPU: float32(i), Cost: 1, Coverage: 1}
	}
	var file bytes.Buffer
	w.Reset(&file)
	putSorted(w, all) // in the given order
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := read(t, file.Bytes())
	if len(got) != n {
		t.Fatalf("%d rows, want %d", len(got), n)
	}
	for i := range all {
		if got[i].Task != all[i].Task || got[i].CPU != all[i].CPU || got[i].TS != all[i].TS {
			t.Fatalf("row %d is %+v", i, got[i])
		}
	}
	if groups := input(t, "f", file.Bytes()).File.RowGroups(); len(groups) != 2 || groups[0].NumRows() != groupRows {
		t.Errorf("%d row groups", len(groups))
	}
}

// TestMergeAgreesWithSorting: a merge gives the same result as sorting all samples, for
// any overlap, across page and row group bounds, also of merged files.
func TestMergeAgreesWithSorting(t *testing.T) {
	w := small(t)
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(2, seed))
		var all []sample.Sample
		var files []Input
		for i := range 1 + r.IntN(5) {
			part := random(r, r.IntN(150))
			if r.IntN(2) == 0 { // most files cover their own stretch of time
				for k := range part {
					part[k].TS += sample.Millis(1000 * i)
				}
			}
			files = append(files, input(t, fmt.Sprint(i), write(t, w, part)))
			all = append(all, part...)
		}
		order(all)
		var b bytes.Buffer
		w.Reset(&b)
		n, err := Merge(w, files)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if int(n) != len(all) {
			t.Errorf("seed %d: %d rows, want %d", seed, n, len(all))
		}
		if diff := gocmp.Diff(all, read(t, b.Bytes()), equal, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d (sorted −, merged +):\n%s", seed, diff)
		}
	}
}

// A file of another kind is refused with its name, not merged wrongly.
func TestOthersAreNotMerged(t *testing.T) {
	var b bytes.Buffer
	tw := trace.NewWriter(&b)
	if err := errors.Join(tw.Write(&sample.Sample{Task: "/a", Signal: "cpi", Coverage: 1}), tw.Close()); err != nil {
		t.Fatal(err)
	}
	in := input(t, "trace.parquet", b.Bytes())
	if Mergeable(in.File) {
		t.Error("a trace counts as a segment")
	}
	w := small(t)
	w.Reset(io.Discard)
	if _, err := Merge(w, []Input{in}); err == nil || !strings.Contains(err.Error(), "trace.parquet") {
		t.Errorf("merged: %v", err)
	}
}

// Readers skip row groups by the bounds written.
func TestBounds(t *testing.T) {
	w := small(t)
	r := rand.New(rand.NewPCG(3, 3))
	f := input(t, "f", write(t, w, random(r, 100))).File
	names := f.Schema().Columns()
	for g, group := range f.RowGroups() {
		for i, c := range group.ColumnChunks() {
			name := names[i][0]
			low, high, ok := c.(*parquet.FileColumnChunk).Bounds()
			values := make([]parquet.Value, group.NumRows())
			pages := c.Pages()
			var least, most parquet.Value
			nulls := 0
			for {
				p, err := pages.ReadPage()
				if err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				n, err := p.Values().ReadValues(values)
				if err != nil && err != io.EOF {
					t.Fatal(err)
				}
				for _, v := range values[:n] {
					switch {
					case v.IsNull():
						nulls++
					default:
						v = v.Clone()
						if least.IsNull() || c.Type().Compare(v, least) < 0 {
							least = v
						}
						if most.IsNull() || c.Type().Compare(v, most) > 0 {
							most = v
						}
					}
				}
				parquet.Release(p)
			}
			if err := pages.Close(); err != nil {
				t.Fatal(err)
			}
			if got := c.(*parquet.FileColumnChunk).NullCount(); got != int64(nulls) {
				t.Errorf("group %d, %s: %d nulls, says %d", g, name, nulls, got)
			}
			if ok && (c.Type().Compare(low, least) != 0 || c.Type().Compare(high, most) != 0) {
				t.Errorf("group %d, %s: %v to %v, says %v to %v", g, name, least, most, low, high)
			}
			if !ok && slices.Contains([]string{"ts", "job", "task", "machine", "cpu"}, name) {
				t.Errorf("group %d, %s has no bounds", g, name)
			}
		}
		if by := group.SortingColumns(); len(by) != len(Order()) || by[0].Path()[0] != "job" {
			t.Errorf("group %d is sorted by %v", g, by)
		}
	}
}

// full is a disk that is full after a number of bytes.
type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("no space left")
	}
	return len(b), nil
}

func TestAFullDiskIsAnError(t *testing.T) {
	w := small(t)
	all := random(rand.New(rand.NewPCG(4, 4)), 100)
	size := len(write(t, w, all))
	for left := 0; left < size; left += 997 {
		w.Reset(&full{left})
		put(w, all)
		if err := w.Close(); err == nil {
			t.Fatalf("%d bytes of %d were enough", left, size)
		}
	}
	if got := read(t, write(t, w, all)); len(got) != 100 {
		t.Errorf("after the errors it writes %d rows of 100", len(got))
	}
}

// A damaged file gives an error or rows, never too many rows, and no panic.
func TestDamage(t *testing.T) {
	w := small(t)
	r := rand.New(rand.NewPCG(5, 6))
	whole := write(t, w, random(r, 300))
	footer := int(binary.LittleEndian.Uint32(whole[len(whole)-8:]))
	refused := 0
	for range 30 {
		file := bytes.Clone(whole)
		file[4+r.IntN(len(file)-footer-12)] ^= byte(1 + r.IntN(255)) // a damaged footer makes the library panic
		w.Reset(io.Discard)
		n, err := Merge(w, []Input{input(t, "f", file)})
		if err != nil {
			refused++
		} else if n > 300 {
			t.Errorf("%d rows", n)
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

// TestReaderAlignsPages: the pages of other writers begin at different rows in each
// column, and may be without a dictionary.
func TestReaderAlignsPages(t *testing.T) {
	all := random(rand.New(rand.NewPCG(6, 7)), 700)
	var b bytes.Buffer
	w := parquet.NewGenericWriter[trace.Row](&b, append(trace.Options(), parquet.PageBufferSize(300), parquet.MaxRowsPerRowGroup(300), parquet.DictionaryMaxBytes(200))...)
	for i := range all {
		var row trace.Row
		row.Set(&all[i], nil)
		if _, err := w.Write([]trace.Row{row}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(input(t, "f", b.Bytes()).File)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	at, blocks := 0, 0
	for {
		more, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
		blocks++
		for i := range r.N {
			m := &all[at]
			var want, got Series
			want.Of(m)
			for k := range got {
				got[k] = r.Names[k][r.Index[k][i]]
			}
			sameCost := r.Cost[i] == m.Cost || r.Cost[i] != r.Cost[i] && m.Cost != m.Cost
			if got != want || r.TS[i] != int64(m.TS) || r.CPU[i] != m.CPU || !sameCost || r.Coverage[i] != m.Coverage || r.Flags[i] != int32(m.Flags) {
				t.Fatalf("row %d is %v, want %+v", at, got, m)
			}
			for e := range r.Extras {
				v, ok := m.Extras.Get(sample.Extra(e))
				if has := r.Extras[e] != nil && r.Extras[e][i] == r.Extras[e][i]; has != ok || has && r.Extras[e][i] != v {
					t.Fatalf("row %d, %v: %v, want %v", at, sample.Extra(e), r.Extras[e], v)
				}
			}
			at++
		}
	}
	if at != len(all) || blocks < 10 {
		t.Errorf("%d rows of %d in %d blocks", at, len(all), blocks)
	}
}

// TestAttackLongNamesInARowGroup: a row group has only so many bytes of names, which its writer and a
// merge hold in memory.
func TestAttackLongNamesInARowGroup(t *testing.T) {
	w := small(t)
	w.groupRows, w.groupText = groupRows, 4096
	var all []sample.Sample
	for i := range 40 {
		s := sample.Sample{TS: 1_790_000_000_000, Machine: "m", Job: "j", Task: sample.TaskName(fmt.Sprintf("/%02d%s", i, strings.Repeat("x", 1000))), Platform: "p", Signal: sample.CPI, Class: sample.Batch, CPU: 1, Cost: 1, Coverage: 1}
		all = append(all, s, s)
	}
	file := write(t, w, all)
	if n := len(input(t, "f", file).File.RowGroups()); n < 8 {
		t.Errorf("40 names of 1 kB are in %d row groups", n)
	}
	if diff := gocmp.Diff(all, read(t, file), equal); diff != "" {
		t.Error(diff)
	}
}
