package parquet

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/tracetest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// random makes a sample. Some names are so long that a dictionary becomes too large to
// be one.
func random(r *rand.Rand) sample.Sample {
	s := tracetest.Random(r)
	if r.IntN(8) == 0 {
		s.Task += sample.TaskName(strings.Repeat("x", r.IntN(300)))
	}
	return s
}

func write(t testing.TB, samples []sample.Sample, labels ...trace.Label) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	tracetest.WriteAll(t, w, samples)
	if labels != nil {
		if err := w.Labels(labels...); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(t testing.TB, file []byte) ([]sample.Sample, *Reader) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return tracetest.ReadAll(t, r), r
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	for _, n := range []int{0, 1, batch, 5*batch + 17} {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		var want []sample.Sample
		for range n {
			want = append(want, random(r))
		}
		got, reader := read(t, write(t, want))
		if diff := cmp.Diff(want, got, tracetest.Equal()); diff != "" {
			t.Errorf("%d samples: %s", n, diff)
		}
		if rep := reader.Report(); rep.Rows != n || rep.Bad != 0 || len(rep.Unknown) != 0 {
			t.Errorf("%d samples: %+v", n, rep)
		}
		if _, labelled := reader.Labels(); labelled {
			t.Error("labels where none were written")
		}
	}
}

func TestEveryExtraHasAColumn(t *testing.T) {
	var s sample.Sample
	for _, e := range sample.AllExtras() {
		s.Extras.Set(e, 1+float64(e))
	}
	var row Row
	row.Set(&s, nil)
	stored := map[string]*float64{}
	for i, v := 0, reflect.ValueOf(row); i < v.NumField(); i++ {
		if p, ok := v.Field(i).Interface().(*float64); ok {
			stored[v.Type().Field(i).Tag.Get("parquet")] = p
		}
	}
	for _, e := range sample.AllExtras() {
		if v := stored[e.String()]; v == nil || *v != 1+float64(e) {
			t.Errorf("%v is stored as %v", e, v)
		}
		if _, ok := parquet.SchemaOf(Row{}).Lookup(e.String()); !ok {
			t.Errorf("extra %v has another column name", e)
		}
	}
}

// Row groups end and dictionaries change in the middle of a batch.
func TestRowGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var want []sample.Sample
	var b bytes.Buffer
	w := parquet.NewGenericWriter[tracedRow](&b, parquet.MaxRowsPerRowGroup(100), parquet.PageBufferSize(64))
	for range 777 {
		want = append(want, random(r))
		var row tracedRow
		row.set(&want[len(want)-1], make([]float64, 0, 16))
		if _, err := w.Write([]tracedRow{row}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, _ := read(t, b.Bytes())
	if diff := cmp.Diff(want, got, tracetest.Equal()); diff != "" {
		t.Error(diff)
	}
}

func TestLabels(t *testing.T) {
	want := []trace.Label{{Machine: "m", Victim: "/a", Antagonist: "/b", From: 1, To: 2, Cause: "cache"}, {Victim: "/a", From: 3, To: 3, Cause: "quota"}}
	_, r := read(t, write(t, nil, want...))
	got, labelled := r.Labels()
	if diff := cmp.Diff(want, got); diff != "" || !labelled {
		t.Error(labelled, diff)
	}
	_, r = read(t, write(t, nil))
	if got, labelled := r.Labels(); labelled || got != nil {
		t.Error("an unlabelled trace is read as labelled")
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	if err := errors.Join(w.Labels(), w.Close()); err != nil {
		t.Fatal(err)
	}
	_, r = read(t, b.Bytes())
	if got, labelled := r.Labels(); !labelled || len(got) != 0 {
		t.Errorf("a trace without a victim: labelled %v, %v", labelled, got)
	}
	if err := w.Labels(trace.Label{Victim: "/a", Antagonist: "/a"}); !errors.Is(err, trace.ErrLabel) {
		t.Errorf("its own antagonist: %v", err)
	}
	if err := w.Unlabelled(trace.Stretch{From: 1, To: 2}); !errors.Is(err, trace.ErrLabel) {
		t.Errorf("a stretch without a victim: %v", err)
	}
}

func TestUnlabelled(t *testing.T) {
	want := []trace.Stretch{{Machine: "m", Victim: "/a", From: 1, To: 2}, {Victim: "/b", From: -3, To: 3}}
	var b bytes.Buffer
	w := NewWriter(&b)
	if err := errors.Join(w.Unlabelled(want[0]), w.Unlabelled(want[1]), w.Close()); err != nil {
		t.Fatal(err)
	}
	_, r := read(t, b.Bytes())
	if diff := cmp.Diff(want, r.Unlabelled()); diff != "" {
		t.Error(diff)
	}
	if labels, labelled := r.Labels(); !labelled || len(labels) != 0 {
		t.Errorf("labelled %v, %v", labelled, labels)
	}
}

// foreign is a sample as another program might have written it: columns in another
// order, nullable, without dictionaries, in other widths.
type foreign struct {
	Cost   *float64 `parquet:"cost"`
	Signal *string  `parquet:"signal"`
	CPU    *float64 `parquet:"cpu"`
	Task   *string  `parquet:"task"`
	Class  *string  `parquet:"class"`
	Flags  *int64   `parquet:"flags"`
	Cycles *int64   `parquet:"cycles"`
	Served *string  `parquet:"served"`
	Colour string   `parquet:"colour"`
	TS     *int64   `parquet:"ts"`
}

func at[T any](v T) *T { return &v }

func TestFilesOfOthers(t *testing.T) {
	var b bytes.Buffer
	if err := parquet.Write(&b, []foreign{
		{at(1.5), at("cpi"), at(0.25), at("/a"), at("batch"), at(int64(3)), at(int64(7)), at(`[{"by":"/b","s":1.5}]`), "red", at(int64(5))},
		{nil, at("cpi"), at(0.25), at("/a"), nil, nil, nil, at("[]"), "", at(int64(6))},
		{at(1.5), at("cpi"), nil, at("/a"), nil, nil, nil, nil, "", at(int64(7))},
		{at(1.5), at("cpi"), at(1.), nil, nil, nil, nil, nil, "", at(int64(8))},
		{at(1.5), at("cpi"), at(1.), at("/a"), at("best"), nil, nil, nil, "", at(int64(9))},
		{at(1.5), at("cpi"), at(1.), at("/a"), nil, at(int64(99)), nil, nil, "", at(int64(10))},
		{at(1.5), at("cpi"), at(1.), at("/a\nb"), nil, nil, nil, nil, "", at(int64(11))},
		{at(1.5), at("cpi"), at(1.), at("/a"), nil, nil, nil, nil, "", nil},
		{at(1.5), at("cpi"), at(1.), at("/a"), nil, nil, nil, at("[{"), "", at(int64(11))},
		{at(2.5), at("cpi"), at(1.), at("/b"), nil, nil, at(int64(9)), nil, "", at(int64(12))},
	}); err != nil {
		t.Fatal(err)
	}
	got, r := read(t, b.Bytes())
	want := []sample.Sample{
		{TS: 5, Task: "/a", Signal: "cpi", Class: sample.Batch, CPU: 0.25, Cost: 1.5, Coverage: 1, Flags: 3, Served: []sample.Served{{By: "/b", Time: 1.5}}},
		{TS: 6, Task: "/a", Signal: "cpi", CPU: 0.25, Cost: float32(math.NaN()), Coverage: 1, Served: []sample.Served{}},
		{TS: 12, Task: "/b", Signal: "cpi", CPU: 1, Cost: 2.5, Coverage: 1},
	}
	want[0].Extras.Set(sample.Cycles, 7)
	want[2].Extras.Set(sample.Cycles, 9)
	if diff := cmp.Diff(want, got, tracetest.Equal()); diff != "" {
		t.Error(diff)
	}
	wantReport := trace.Report{Rows: 3, Bad: 7, Unknown: []string{"colour"}, Reasons: []string{"row 3: invalid sample: cpu NaN", "row 4: invalid sample: no task",
		`row 5: class "best": want one of best-effort, batch, latency-sensitive`, "row 6: flags 99: unknown bits", `row 7: invalid sample: line break in "/a\nb"`}}
	if diff := cmp.Diff(wantReport, r.Report()); diff != "" {
		t.Error(diff)
	}
}

// TestTimesOfOthers: quell query and DuckDB write times in µs, and pandas in ns, as the column's type says.
func TestTimesOfOthers(t *testing.T) {
	type micros struct {
		TS     *int64  `parquet:"ts,timestamp(microsecond)"`
		Task   string  `parquet:"task"`
		Signal string  `parquet:"signal"`
		CPU    float64 `parquet:"cpu"`
		Cost   float64 `parquet:"cost"`
	}
	type nanos struct {
		TS     int64   `parquet:"ts,timestamp(nanosecond),dict"`
		Task   string  `parquet:"task"`
		Signal string  `parquet:"signal"`
		CPU    float64 `parquet:"cpu"`
		Cost   float64 `parquet:"cost"`
	}
	var us, ns bytes.Buffer
	if err := errors.Join(parquet.Write(&us, []micros{{at(int64(1_700_000_030_001_200)), "/a", "cpi", 1, 1.5}, {nil, "/a", "cpi", 1, 1.5}}),
		parquet.Write(&ns, []nanos{{1_700_000_030_001_000_000, "/a", "cpi", 1, 1.5}})); err != nil {
		t.Fatal(err)
	}
	for _, file := range [][]byte{us.Bytes(), ns.Bytes()} {
		if got, r := read(t, file); len(got) != 1 || got[0].TS != 1_700_000_030_001 {
			t.Errorf("%+v, %+v", got, r.Report())
		}
	}
}

func TestReaderRefusesOtherFiles(t *testing.T) {
	var b bytes.Buffer
	if err := parquet.Write(&b, []struct{ TS int64 }{{1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(bytes.NewReader(b.Bytes()), int64(b.Len())); !errors.Is(err, trace.ErrHeader) {
		t.Errorf("a file without columns of a trace: %v", err)
	}
	for _, text := range []string{"", "PAR1", "PAR1PAR1", "PAR1\xff\xff\xff\x7fPAR1", "hello, I am no Parquet"} {
		if _, err := NewReader(strings.NewReader(text), int64(len(text))); err == nil {
			t.Errorf("%q was opened", text)
		}
	}
}

func TestWriterRefusesWhatCannotBeReadBack(t *testing.T) {
	w := NewWriter(io.Discard)
	good := sample.Sample{Task: "/a", Signal: "cpi", Coverage: 1}
	for name, spoil := range map[string]func(*sample.Sample){
		"no task":       func(s *sample.Sample) { s.Task = "" },
		"line feed":     func(s *sample.Sample) { s.Machine = "a\nb" },
		"infinite cost": func(s *sample.Sample) { s.Cost = float32(math.Inf(1)) },
		"NaN extra":     func(s *sample.Sample) { s.Extras.Set(sample.Cycles, math.NaN()) },
	} {
		bad := good
		spoil(&bad)
		if err := w.Write(&bad); !errors.Is(err, trace.ErrSample) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A damaged byte costs rows, which are counted, and never more than that.
func TestDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var all []sample.Sample
	var b bytes.Buffer
	w := parquet.NewGenericWriter[tracedRow](&b, parquet.Compression(&parquet.Zstd), parquet.MaxRowsPerRowGroup(60))
	for range 300 {
		all = append(all, random(r))
		var row tracedRow
		row.set(&all[len(all)-1], make([]float64, 0, 16))
		if _, err := w.Write([]tracedRow{row}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for i := range 80 {
		file := bytes.Clone(b.Bytes())
		file[r.IntN(len(file))] ^= byte(1 + r.IntN(255))
		reader, err := NewReader(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			continue // damage at the end of the file, without which nothing can be read
		}
		var s sample.Sample
		n := 0
		for err = reader.Read(&s); err == nil; err = reader.Read(&s) {
			n++
		}
		rep := reader.Report()
		reader.Close()
		if err != io.EOF || rep.Rows != n || int64(rep.Rows+rep.Bad) != reader.file.NumRows() {
			t.Fatalf("damage %d: %v, %d samples, %+v of %d rows", i, err, n, rep, reader.file.NumRows())
		}
		if rep.Bad > 0 {
			lost++
		}
	}
	if lost == 0 {
		t.Error("no damage was noticed")
	}
}

func FuzzReader(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	f.Add(write(f, []sample.Sample{random(r), random(r), random(r)}, trace.Label{Victim: "/a"}))
	f.Add([]byte("PAR1PAR1"))
	f.Add([]byte("PAR11PAR1")) // its metadata would be of 1.4 GB
	f.Fuzz(func(t *testing.T, file []byte) {
		reader, err := NewReader(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		defer reader.Close()
		if reader.file.NumRows() > 1<<14 {
			return // too many to be written again
		}
		all := tracetest.ReadAll(t, reader)
		again, _ := read(t, write(t, all))
		if diff := cmp.Diff(all, again, tracetest.Equal()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// The example trace is the same after it was written as Parquet and read back.
func TestExampleAsParquet(t *testing.T) {
	text, err := os.Open("../../../../testdata/traces/example.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	r, err := trace.NewReader(text)
	if err != nil {
		t.Fatal(err)
	}
	want := tracetest.ReadAll(t, r)
	got, _ := read(t, write(t, want))
	if diff := cmp.Diff(want, got, tracetest.Equal()); diff != "" {
		t.Error(diff)
	}
}
