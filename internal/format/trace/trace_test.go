package trace

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace/tracetest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func readAll(t testing.TB, text []byte) ([]sample.Sample, Report) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	all := tracetest.ReadAll(t, r)
	return all, r.Report()
}

func writeAll(t testing.TB, samples []sample.Sample, extras ...sample.Extra) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, extras...)
	if slices.ContainsFunc(samples, func(s sample.Sample) bool { return s.Served != nil }) {
		w.Served()
	}
	tracetest.WriteAll(t, w, samples)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bare removes the apostrophe that makes a name inert.
func bare(cell string) string {
	if formula(cell) {
		return cell[1:]
	}
	return cell
}

// TestNamesAreNoFormulas: a spreadsheet that opens a trace executes nothing that a task's name
// says, and every name is read back.
func TestNamesAreNoFormulas(t *testing.T) {
	var want []sample.Sample
	for i, name := range []string{"=cmd|' /C calc'!A0", "+1", "-1+1", "@SUM(1)", "\t=1", "'=1", "''", "'", "'x", "''=1", "plain"} {
		want = append(want, sample.Sample{TS: sample.Millis(i + 1), Machine: name, Job: sample.JobName(name), Task: sample.TaskName(name), Platform: sample.Platform(name),
			Signal: sample.SignalName(name), Variant: name, Coverage: 1})
	}
	text := writeAll(t, want)
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] {
		for _, cell := range row[1:7] {
			if strings.IndexByte("=+-@\t", cell[0]) >= 0 {
				t.Errorf("the cell %q is a formula", cell)
			}
		}
	}
	if got, _ := readAll(t, text); !cmp.Equal(want, got, tracetest.Equal()) {
		t.Error(cmp.Diff(want, got, tracetest.Equal()))
	}
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var want []sample.Sample
	for range 2000 {
		want = append(want, tracetest.Random(r))
	}
	text := writeAll(t, want, sample.AllExtras()...)
	got, report := readAll(t, text)
	if diff := cmp.Diff(want, got, tracetest.Equal()); diff != "" {
		t.Error(diff)
	}
	if report.Rows != len(want) || report.Bad != 0 || len(report.Unknown) != 0 {
		t.Errorf("report %+v", report)
	}

	// Any other CSV reader sees the same fields.
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows[1:] {
		if bare(row[colMachine]) != want[i].Machine || bare(row[colTask]) != string(want[i].Task) {
			t.Fatalf("encoding/csv reads %q, %q for %q, %q", row[colMachine], row[colTask], want[i].Machine, want[i].Task)
		}
	}

	// Traces may be joined end to end.
	twice, report := readAll(t, append(bytes.Clone(text), text...))
	if len(twice) != 2*len(want) || report.Bad != 0 {
		t.Errorf("joined: %d samples, %+v", len(twice), report)
	}
}

// A trace is continued with one header, or with another if the columns differ. A row that was not written to its end
// costs only itself.
func TestContinue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.csv")
	s := sample.Sample{TS: 5, Task: "/a", Signal: sample.RunQ, Cost: 1, Coverage: 1}
	s.Extras.Set(sample.Wakeups, 3)
	s.Extras.Set(sample.Cycles, 4)
	for _, run := range []struct {
		extra sample.Extra
		end   string
	}{{sample.Wakeups, ""}, {sample.Wakeups, "17000"}, {sample.Wakeups, ""}, {sample.Cycles, ""}} {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		w := NewWriter(f, run.extra)
		err = errors.Join(w.Continue(file), w.Write(&s), w.Flush())
		if _, failed := f.WriteString(run.end); err != nil || failed != nil || f.Close() != nil {
			t.Fatal(err, failed)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, report := readAll(t, text)
	if len(got) != 4 || report.Bad != 1 || bytes.Count(text, []byte(written)) != 2 {
		t.Fatalf("%d samples, %+v of:\n%s", len(got), report, text)
	}
	for i, e := range []sample.Extra{sample.Wakeups, sample.Wakeups, sample.Wakeups, sample.Cycles} {
		want, _ := s.Extras.Get(e)
		if v, _ := got[i].Extras.Get(e); v != want || got[i].Extras.Len() != 1 {
			t.Errorf("sample %d: %+v", i, got[i])
		}
	}
}

// stopping writes to a file that has room for some more bytes only; negative: for all.
type stopping struct {
	*os.File
	room int
}

func (w *stopping) Write(b []byte) (int, error) {
	if w.room < 0 || len(b) <= w.room {
		return w.File.Write(b)
	}
	n, err := w.File.Write(b[:w.room])
	return n, errors.Join(err, io.ErrShortWrite)
}

// A trace that is continued loses the rows for which the disk had no room, and none after those.
func TestADiskHasRoomAgain(t *testing.T) {
	for _, room := range []int{0, 300} { // for nothing, for the header and a part of the row
		file := filepath.Join(t.TempDir(), "trace.csv")
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		disk := &stopping{f, room}
		w := NewWriter(disk)
		s := sample.Sample{TS: 5, Machine: strings.Repeat("m", 400), Task: "/a", Signal: sample.RunQ, Cost: 1, Coverage: 1}
		if err := errors.Join(w.Continue(file), w.Write(&s)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("no room: %v", err)
		}
		for disk.room = -1; s.TS < 8; {
			s.TS++
			if err := errors.Join(w.Write(&s), w.Flush()); err != nil {
				t.Errorf("room again, sample %d: %v", s.TS, err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil || f.Close() != nil {
			t.Fatal(err)
		}
		if got, report := readAll(t, text); len(got) != 3 || got[0].TS != 6 {
			t.Errorf("room for %d bytes: %d samples, %+v of:\n%s", room, len(got), report, text)
		}
	}
}

func TestExample(t *testing.T) {
	const name = "../../../testdata/traces/example.csv"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	samples, report := readAll(t, text)
	if report.Bad != 0 || len(report.Unknown) != 0 || len(samples) < 10 {
		t.Fatalf("%d samples, %+v", len(samples), report)
	}
	if got := writeAll(t, samples, sample.WaitOther, sample.Wakeups); !bytes.Equal(got, text) {
		t.Errorf("written again, the example differs: %s", cmp.Diff(string(text), string(got)))
	}
}

func TestReader(t *testing.T) {
	const head = "ts,task,signal,cpu,cost\n"
	nan := float32(math.NaN())
	one := func(cost float32) []sample.Sample {
		return []sample.Sample{{TS: 5, Task: "/a", Signal: "cpi", CPU: 0.5, Cost: cost, Coverage: 1}}
	}
	served := func(s sample.Sample, who ...sample.Served) sample.Sample {
		s.Served = append([]sample.Served{}, who...)
		return s
	}
	withCycles := func(s []sample.Sample) []sample.Sample { s[0].Extras.Set(sample.Cycles, 0); return s }
	for _, c := range []struct {
		name, text string
		want       []sample.Sample
		report     Report
	}{
		{"the needed columns only", head + "5,/a,cpi,0.5,1.25\n", one(1.25), Report{Rows: 1}},
		{"no line feed at the end", head + "5,/a,cpi,0.5,1.25", one(1.25), Report{Rows: 1}},
		{"CRLF, byte order mark, blank line", "\ufeffts,task,signal,cpu,cost\r\n\r\n5,/a,cpi,0.5,1.25\r\n", one(1.25), Report{Rows: 1}},
		{"columns in another order", "cost,cpu,signal,task,ts\n1.25,0.5,cpi,/a,5\n", one(1.25), Report{Rows: 1}},
		{"a cost that was not measured", head + "5,/a,cpi,0.5,\n", one(nan), Report{Rows: 1}},
		{"unknown columns", "ts,task,signal,cpu,cost,colour,\n5,/a,cpi,0.5,1.25,\"b,l\",x\n", one(1.25), Report{Rows: 1, Unknown: []string{"colour", ""}}},
		{"an extra that is absent, and one that is 0", "ts,task,signal,cpu,cost,instructions,cycles\n5,/a,cpi,0.5,1.25,,0\n", withCycles(one(1.25)), Report{Rows: 1}},
		{"served tasks, not counted, none", "ts,task,signal,cpu,cost,served\n5,/a,cpi,0.5,1.25,\"[{\"\"by\"\":\"\"/b\"\",\"\"s\"\":0.5,\"\"fair\"\":0.25}]\"\n5,/a,cpi,0.5,1.25,\n5,/a,cpi,0.5,1.25,[]\n",
			[]sample.Sample{served(one(1.25)[0], sample.Served{By: "/b", Time: 0.5, Fair: 0.25}), one(1.25)[0], served(one(1.25)[0])}, Report{Rows: 3}},
		{"served that is none", "ts,task,signal,cpu,cost,served\n5,/a,cpi,0.5,1.25,x\n5,/a,cpi,0.5,1.25,\"[{\"\"by\"\":\"\"/b\"\",\"\"s\"\":-1}]\"\n5,/a,cpi,0.5,1.25,[{}]\n", nil, Report{Bad: 3,
			Reasons: []string{"line 2: served: want a list of {by, s, fair}", "line 3: invalid sample: /b was served for -1 s", "line 4: invalid sample: served task has no name"}}},
		{"bad rows between good ones", head + "x,/a,cpi,1,1\n5,/a,cpi,0.5,1.25\n5,/a,cpi,0.5\n", one(1.25), Report{Rows: 1, Bad: 2,
			Reasons: []string{`line 2: ts: strconv.ParseInt: parsing "x": invalid syntax`, "line 4: 4 fields, the header has 5"}}},
		{"a torn quote takes only its own line", head + "5,\"/a,cpi,0.5,1\n5,/a,cpi,0.5,1.25\n", one(1.25), Report{Rows: 1, Bad: 1,
			Reasons: []string{"line 2: malformed quotes"}}},
		{"a quote inside", head + "5,/a\"b,cpi,0.5,1\n5,\"/a\"b,cpi,0.5,1\n", nil, Report{Bad: 2,
			Reasons: []string{"line 2: malformed quotes", "line 3: malformed quotes"}}},
		{"numbers that no sample has", head + "5,/a,cpi,-1,1\n5,/a,cpi,NaN,1\n5,/a,cpi,1,Inf\n5,,cpi,1,1\n5,/a,,1,1\n5,/a,cpi,,1\n", nil, Report{Bad: 6,
			Reasons: []string{"line 2: invalid sample: cpu -1", "line 3: cpu: NaN is not allowed: leave the field empty",
				"line 4: invalid sample: cost +Inf", "line 5: invalid sample: no task", "line 6: invalid sample: no signal"}}},
		{"a line too long", head + strings.Repeat("x", 3*maxLine) + "\n5,/a,cpi,0.5,1.25\n", one(1.25), Report{Rows: 1, Bad: 1,
			Reasons: []string{"line 2: line longer than 65536 bytes"}}},
		{"nothing but the header", head, nil, Report{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, report := readAll(t, []byte(c.text))
			if diff := cmp.Diff(c.want, got, tracetest.Equal()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.report, report); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReaderRefusesOtherFiles(t *testing.T) {
	for _, text := range []string{"", "hello\n", "ts,task,signal,cpu\n", "ts,task,signal,cpu,cost,ts\n", "\"ts,task\n", strings.Repeat("x", 2*maxLine)} {
		if _, err := NewReader(strings.NewReader(text)); !errors.Is(err, ErrHeader) {
			t.Errorf("header %.20q: %v", text, err)
		}
	}
}

func TestReaderPassesOnReadErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	r, err := NewReader(io.MultiReader(strings.NewReader("ts,task,signal,cpu,cost\n"), failing{broken}))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Read(&sample.Sample{}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error)  { return 0, f.error }
func (f failing) Write([]byte) (int, error) { return 0, f.error }

func TestWriterRefusesWhatCannotBeReadBack(t *testing.T) {
	good := sample.Sample{Task: "/a", Signal: "cpi", Coverage: 1}
	var b bytes.Buffer
	w := NewWriter(&b, sample.Cycles)
	for name, spoil := range map[string]func(*sample.Sample){
		"no task":          func(s *sample.Sample) { s.Task = "" },
		"line feed":        func(s *sample.Sample) { s.Machine = "a\nb" },
		"NaN usage":        func(s *sample.Sample) { s.CPU = float32(math.NaN()) },
		"infinite cost":    func(s *sample.Sample) { s.Cost = float32(math.Inf(1)) },
		"coverage 2":       func(s *sample.Sample) { s.Coverage = 2 },
		"class 9":          func(s *sample.Sample) { s.Class = 9 },
		"NaN extra":        func(s *sample.Sample) { s.Extras.Set(sample.Cycles, math.NaN()) },
		"served nameless":  func(s *sample.Sample) { s.Served = []sample.Served{{Time: 1}} },
		"served backwards": func(s *sample.Sample) { s.Served = []sample.Served{{By: "/b", Time: -1}} },
		"served for ever":  func(s *sample.Sample) { s.Served = []sample.Served{{By: "/b", Time: math.Inf(1)}} },
		"fair share of 2":  func(s *sample.Sample) { s.Served = []sample.Served{{By: "/b", Fair: 2}} },
		"fair share NaN":   func(s *sample.Sample) { s.Served = []sample.Served{{By: "/b", Fair: math.NaN()}} },
		"served line feed": func(s *sample.Sample) { s.Served = []sample.Served{{By: "/b\n"}} },
		"name too long":    func(s *sample.Sample) { s.Variant = strings.Repeat("x", maxLine) },
	} {
		bad := good
		spoil(&bad)
		if err := w.Write(&bad); !errors.Is(err, ErrSample) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(b.String(), "\n"); got != 1 {
		t.Errorf("%d lines were written, want the header:\n%s", got, b.String())
	}
	broken := errors.New("disk full")
	w = NewWriter(failing{broken})
	if err := w.Flush(); !errors.Is(err, broken) {
		t.Errorf("flush: %v", err)
	}
}

// Memory is bounded by the distinct names: equal names are one string, and a
// row of known names costs no allocation.
func TestReaderKeepsEqualNamesOnce(t *testing.T) {
	s := tracetest.Random(rand.New(rand.NewPCG(3, 4)))
	row := writeAll(t, []sample.Sample{s})
	text := append(bytes.Clone(row), bytes.Repeat(row[bytes.IndexByte(row, '\n')+1:], 2000)...)
	r, err := NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var got sample.Sample
	if n := testing.AllocsPerRun(1000, func() {
		if err := r.Read(&got); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a row", n)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("ts,task,signal,cpu,cost,cycles,flags,class\n5,\"a,\"\"b\",cpi,0.5,,1e3,capped+split,batch\nbad\n"))
	f.Add(writeAll(f, []sample.Sample{tracetest.Random(rand.New(rand.NewPCG(5, 6)))}, sample.AllExtras()...))
	f.Add([]byte("\ufeffts,task,signal,cpu,cost\r\n-1,\"\",\"\",0x1p-2,-0\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := NewReader(bytes.NewReader(text))
		if err != nil {
			return
		}
		var first []sample.Sample
		for {
			var s sample.Sample
			if err := r.Read(&s); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			first = append(first, s)
		}
		if rep := r.Report(); rep.Rows != len(first) || rep.Rows+rep.Bad > bytes.Count(text, []byte("\n")) ||
			len(rep.Reasons) != min(rep.Bad, maxReasons) {
			t.Fatalf("%d samples, report %+v", len(first), rep)
		}
		again, rep := readAll(t, writeAll(t, first, sample.AllExtras()...))
		if diff := cmp.Diff(first, again, tracetest.Equal()); diff != "" || rep.Bad != 0 {
			t.Fatalf("%+v\n%s", rep, diff)
		}
	})
}

// FuzzSplit compares the splitter with encoding/csv on single lines.
func FuzzSplit(f *testing.F) {
	for _, line := range []string{"a,b", `"a","b""c",`, `"a`, `a"b`, `,,`, `"",""`, `"a"b,c`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) == 0 || bytes.ContainsAny(line, "\r\n") {
			return
		}
		r := Rows{separator: ','}
		fields, ok := r.Split(line)
		twin := csv.NewReader(bytes.NewReader(append(bytes.Clone(line), '\n')))
		want, err := twin.Read()
		if ok != (err == nil) {
			t.Fatalf("%q: split %v, encoding/csv %v", line, ok, err)
		}
		if !ok {
			return
		}
		var got []string
		for _, f := range fields {
			got = append(got, string(f))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q: split %q, encoding/csv %q", line, got, want)
		}
	})
}

func benchmarkTrace(b *testing.B) ([]sample.Sample, []byte) {
	r := rand.New(rand.NewPCG(7, 8))
	samples := make([]sample.Sample, 10000)
	for i := range samples {
		task := 'a' + rune(r.IntN(20))
		samples[i] = sample.Sample{TS: sample.Millis(1_700_000_000_000 + i*10), Machine: "m1", Job: "search", Task: sample.TaskName("/search/" + string(task)),
			Platform: "AuthenticAMD-25-1-1-vm", Signal: sample.RunQ, Variant: "bpf", Class: sample.LatencySensitive,
			CPU: r.Float32(), Cost: r.Float32(), Coverage: 1}
	}
	return samples, writeAll(b, samples)
}

func BenchmarkWrite(b *testing.B) {
	samples, _ := benchmarkTrace(b)
	w := NewWriter(io.Discard)
	i := 0
	for b.Loop() {
		if err := w.Write(&samples[i%len(samples)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkRead reads the same trace with Reader and, in turn, only splits it
// with encoding/csv: the ratio is the time of the former over the latter.
func BenchmarkRead(b *testing.B) {
	samples, text := benchmarkTrace(b)
	var own, std float64
	for b.Loop() {
		start := b.Elapsed()
		r, err := NewReader(bytes.NewReader(text))
		if err != nil {
			b.Fatal(err)
		}
		var s sample.Sample
		for r.Read(&s) == nil {
		}
		middle := b.Elapsed()
		c := csv.NewReader(bytes.NewReader(text))
		c.ReuseRecord = true
		for {
			if _, err := c.Read(); err != nil {
				break
			}
		}
		own += (middle - start).Seconds()
		std += (b.Elapsed() - middle).Seconds()
	}
	b.ReportMetric(float64(b.N*len(samples))/own, "rows/s")
	b.ReportMetric(own/std, "of-encoding/csv")
}
