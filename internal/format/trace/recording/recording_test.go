package recording

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/zstd"
	parquetgo "github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/parquet"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

var equal = cmp.Options{cmp.AllowUnexported(sample.Extras{}), cmpopts.EquateNaNs(), cmpopts.EquateApprox(1e-6, 0)}

const example = "../../../../testdata/traces/example.csv"

func file(t *testing.T, content []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "recording")
	if err := os.WriteFile(name, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func readAll(t *testing.T, r Reader) []sample.Sample {
	t.Helper()
	var all []sample.Sample
	for {
		var s sample.Sample
		if err := r.Read(&s); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
}

func gzipped(t *testing.T, b []byte) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

func zstandard(t *testing.T, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// The same trace is recognised without its name, in any compression.
func TestOpen(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	r, err := trace.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := readAll(t, r)
	var columns bytes.Buffer
	w := parquet.NewWriter(&columns)
	for i := range want {
		if err := w.Write(&want[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for format, content := range map[string][]byte{
		"trace as CSV": text, "trace as CSV, gzip": gzipped(t, text), "trace as CSV, zstd": zstandard(t, text),
		"trace as CSV, gzip, zstd": gzipped(t, zstandard(t, text)), "trace as Parquet": columns.Bytes(),
	} {
		r, err := Open(file(t, content), Options{})
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		if diff := cmp.Diff(want, readAll(t, r), equal); diff != "" || r.Format != format {
			t.Errorf("%s was read as %s: %s", format, r.Format, diff)
		}
		if p := r.Progress(); p != 1 {
			t.Errorf("%s: at its end its progress is %v", format, p)
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for want, content := range map[string][]byte{
		"invalid trace header": []byte("a,b,c\n1,2,3\n"), "file is empty": nil, "decompress it first": gzipped(t, []byte("PAR1")),
		"compressed too many times": gzipped(t, gzipped(t, gzipped(t, []byte("x")))), "no series": []byte(`{"status":"success","data":{"result":[]}}`),
		"no container has cycles": []byte(`{"metric":{"__name__":"kepler_container_cpu_cycles_total"},"values":[[1,"2"],[2,"3"]]}`),
		"unexpected EOF":          []byte(`{"a":[`), "invalid character": []byte(`{"a":[]}]`), "read Parquet": []byte("PAR1 and no more"), "unpack gzip": {0x1f, 0x8b, 0},
	} {
		_, err := Open(file(t, content), Options{})
		var format *FormatError
		if !errors.As(err, &format) || !strings.Contains(err.Error(), want) || format.Remedy() == "" {
			t.Errorf("%.20q: %v, want %s", content, err, want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestRezolusWithoutUsage: Rezolus' sampler of counters runs without that of CPU time, and then no task did anything.
func TestRezolusWithoutUsage(t *testing.T) {
	type counted struct {
		TS           uint64 `parquet:"timestamp"`
		Cycles       uint64 `parquet:"cgroup_cpu_cycles//a/1"`
		Instructions uint64 `parquet:"cgroup_cpu_instructions//a/1"`
	}
	type used struct {
		TS           uint64 `parquet:"timestamp"`
		Cycles       uint64 `parquet:"cgroup_cpu_cycles//a/1"`
		Instructions uint64 `parquet:"cgroup_cpu_instructions//a/1"`
		Usage        uint64 `parquet:"cgroup_cpu_usage//a/user/1"`
	}
	var without, with bytes.Buffer
	w, x := parquetgo.NewGenericWriter[counted](&without), parquetgo.NewGenericWriter[used](&with)
	if _, err := w.Write([]counted{{1e9, 100, 50}, {2e9, 400, 150}}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Write([]used{{1e9, 100, 50, 3e8}, {2e9, 400, 150, 8e8}}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), x.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file(t, without.Bytes()), Options{}); err == nil || !strings.Contains(err.Error(), "cgroup_cpu_usage") {
		t.Error(err)
	}
	r, err := Open(file(t, with.Bytes()), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := readAll(t, r); len(got) != 1 || got[0].CPU != 0.5 || got[0].Cost != 3 || got[0].Task != "/a/1" {
		t.Errorf("%+v", got)
	}
}

// TestRezolusClaims: a damaged or hostile file says how many rows it has, for which memory is allocated before they are read.
func TestRezolusClaims(t *testing.T) {
	var b bytes.Buffer
	if err := parquetgo.Write(&b, []struct{ A int64 }{{1}, {2}}); err != nil {
		t.Fatal(err)
	}
	f, err := parquet.Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	z := &rezolus{file: f, groups: f.RowGroups()}
	for rows, good := range map[int64]bool{-1: false, 1: false, 2: true, 1 << 60: false} {
		f.Metadata().RowGroups[0].NumRows = rows
		if all, err := z.counters(0, 0); (err == nil) != good || good && len(all) != 2 {
			t.Errorf("%d rows: %v, %v", rows, all, err)
		}
	}
}

func TestPrometheus(t *testing.T) {
	series := func(metric, id, points string) string {
		return `{"metric":{"__name__":"kepler_container_` + metric + `","instance":"n1","container_id":"` + id + `","container_name":"c","container_namespace":"ns","pod_name":"p"},"values":[` + points + `]}`
	}
	all := []string{
		series("cpu_cycles_total", "0123456789abcdef", `[100,"1000"],[103,"4000"],[106,"4500"],[109,"100"]`),
		series("cpu_instructions_total", "0123456789abcdef", `[100,"500"],[103,"2000"],[106,"2000"],[109,"50"]`),
		series("bpf_cpu_time_ms_total", "0123456789abcdef", `[100,"0"],[103,"1500"],[106,"1500"],[109,"3"],[112,"9"]`),
		series("cache_miss_total", "0123456789abcdef", `[100,"7"],[103,"9"],["x","1"],[106]`),
		series("joules_total", "0123456789abcdef", `[100,"7"]`),
	}
	body := strings.Join(all, ",")
	want := []sample.Sample{{TS: 103_000, CPU: 0.5, Cost: 2}, {TS: 106_000, CPU: 0, Cost: float32(math.NaN())},
		{TS: 109_000, Cost: float32(math.NaN()), Flags: sample.Restarted}}
	for i := range want {
		s := &want[i]
		s.Machine, s.Job, s.Task, s.Signal, s.Variant, s.Coverage = "n1", "ns/c", "/ns/p/c/0123456789ab", "cpi", "kepler", 1
	}
	want[0].Extras.Set(sample.Cycles, 3000)
	want[0].Extras.Set(sample.Instructions, 1500)
	want[0].Extras.Set(sample.LLCMisses, 2)
	want[1].Extras.Set(sample.Cycles, 500)
	want[1].Extras.Set(sample.Instructions, 0)
	for name, text := range map[string]string{
		"the API's answer":        `{"status":"success","data":{"resultType":"matrix","result":[` + body + `]}}`,
		"an object of metrics":    `{"a":[` + body + `],"b":{"metric":3}}`,
		"answers that are joined": `{"status":"success","data":{"result":[` + all[0] + "]}}\n" + `{"a":[` + strings.Join(all[1:], ",") + "]}\n",
		"with a byte order mark":  "\ufeff {\"a\":[" + body + "]}",
	} {
		r, err := Open(file(t, []byte(text)), Options{})
		if err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(want, readAll(t, r), equal); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if bad := r.Report().Bad; bad < 2 || len(r.Report().Reasons) != bad {
			t.Errorf("%s: %+v", name, r.Report())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTwoExporters: of a container that two exporters saw, samples of the same one come first each time.
func TestTwoExporters(t *testing.T) {
	seen := func(exporter, cycles string) (all string) {
		for metric, v := range map[string]string{"cpu_cycles": cycles, "cpu_instructions": "100", "bpf_cpu_time_ms": "500"} {
			all += `{"metric":{"__name__":"kepler_container_` + metric + `_total","instance":"n1","pod":"` + exporter +
				`","container_id":"0123456789ab","container_name":"c","container_namespace":"ns","pod_name":"p"},"values":[[1,"0"],[2,"` + v + `"]]}` + "\n"
		}
		return all
	}
	for range 20 {
		r, err := newPrometheus(strings.NewReader(seen("b", "200") + seen("a", "300")))
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, r); len(got) != 2 || got[0].Cost != 3 || got[1].Cost != 2 {
			t.Fatalf("%+v", got)
		}
	}
}

func mappedBy(t *testing.T, columns, text string) ([]sample.Sample, trace.Report) {
	t.Helper()
	c, err := LoadColumns(columns)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newMapped(strings.NewReader(text), c)
	if err != nil {
		t.Fatal(err)
	}
	return readAll(t, r), r.Report()
}

// Rows as their publishers print them.
func TestMaps(t *testing.T) {
	for _, c := range []struct {
		columns, text string
		want          sample.Sample
	}{
		{"google2011", "600000000,900000000,3418309,0,4155527081,0.001562,0.06787,0.07568,0.001156,0.001503,0.06787,2.861e-06,0.0001869,0.03967,0.0003567,2.445,0.007243,0,1,0\n",
			sample.Sample{TS: 900_000, Machine: "4155527081", Job: "3418309", Task: "3418309/0", Variant: "google2011", CPU: 0.001562, Cost: 2.445}},
		{"google2019", "start_time,end_time,collection_id,instance_index,machine_id,average_usage_cpus,cycles_per_instruction\n300000000,600000000,152917495628,7,99,0.0368652344,\n",
			sample.Sample{TS: 600_000, Machine: "99", Job: "152917495628", Task: "152917495628/7", Variant: "google2019", CPU: 0.0368652344, Cost: float32(math.NaN())}},
		{"alibaba2018", "c_1,m_2556,386640,50,81,1.5,0.1,3,0.0,0.0,5\n",
			sample.Sample{TS: 386_640_000, Machine: "m_2556", Job: "c_1", Task: "c_1", Variant: "alibaba2018", CPU: 0.5, Cost: 1.5}},
		{"intel-prm", "time,cid,name,cpu_model,vcpu_count,cpu_utilization,cycles_per_instruction\n1536311950.5,a/b,memcache,85,8,250,1.25\n",
			sample.Sample{TS: 1536311950500, Job: "memcache", Task: "a/b", Platform: "85", Variant: "prm", CPU: 2.5, Cost: 1.25}},
	} {
		got, report := mappedBy(t, c.columns, c.text)
		c.want.Signal, c.want.Coverage = "cpi", 1
		if diff := cmp.Diff([]sample.Sample{c.want}, got, equal); diff != "" || report.Bad != 0 {
			t.Errorf("%s: %+v %s", c.columns, report, diff)
		}
	}
	if all := Maps(); len(all) != 5 || !slices.IsSorted(all) {
		t.Errorf("maps %v", all)
	}
	for _, name := range Maps() {
		if c, err := LoadColumns(name); err != nil || c.About == "" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestMappedCounters(t *testing.T) {
	got, report := mappedBy(t, "cgroup-counters", "ts_s,machine,cgroup,id,cycles,instructions,cpu_usage_ns\n"+
		"1,m,/a,7,100,50,0\n1,m,/a,8,0,0,\nbad\n2,m,/a,7,400,150,500000000\n2,m,/a,8,30,10,\n3,m,/a,7,x,150,1\n4,m,/a,7,10,5,0\n")
	want := []sample.Sample{{TS: 2000, Task: "/a/7", CPU: 0.5, Cost: 3}, {TS: 2000, Task: "/a/8", Cost: 3}, {TS: 4000, Task: "/a/7", Cost: float32(math.NaN()), Flags: sample.Restarted}}
	for i, counts := range [][2]float64{{300, 100}, {30, 10}} {
		want[i].Extras.Set(sample.Cycles, counts[0])
		want[i].Extras.Set(sample.Instructions, counts[1])
	}
	for i := range want {
		want[i].Machine, want[i].Job, want[i].Signal, want[i].Variant, want[i].Coverage = "m", "/a", "cpi", "rezolus", 1
	}
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Error(diff)
	}
	if report.Bad != 2 || report.Rows != 3 || !strings.HasPrefix(report.Reasons[0], "line 4: ts: strconv.ParseFloat: parsing \"bad\"") {
		t.Errorf("%+v", report)
	}
}

// TestCountersOfTwoMachines: a task of the same name on another machine has counters of its own.
func TestCountersOfTwoMachines(t *testing.T) {
	got, _ := mappedBy(t, "cgroup-counters", "ts_s,machine,cgroup,id,cycles,instructions,cpu_usage_ns\n"+
		"1,m1,/a,7,100,50,0\n1,m2,/a,7,9000,9000,0\n2,m1,/a,7,400,150,500000000\n2,m2,/a,7,9200,9100,1000000000\n")
	if len(got) != 2 || got[0].Machine != "m1" || got[0].Cost != 3 || got[0].CPU != 0.5 || got[1].Machine != "m2" || got[1].Cost != 2 || got[1].CPU != 1 {
		t.Errorf("%+v", got)
	}
}

// TestCountersNotInOrder: of rows with the newest first none is a sample, and that is told.
func TestCountersNotInOrder(t *testing.T) {
	got, report := mappedBy(t, "cgroup-counters", "ts_s,machine,cgroup,id,cycles,instructions,cpu_usage_ns\n"+
		"3,m,/a,7,400,150,500000000\n2,m,/a,7,300,100,400000000\n1,m,/a,7,100,50,0\n4,m,/a,7,800,250,600000000\n")
	if len(got) != 1 || got[0].TS != 4000 || got[0].Cost != 4 || report.Bad != 2 || !strings.HasPrefix(report.Reasons[0], "line 3: not later") {
		t.Errorf("%+v, %+v", got, report)
	}
}

// TestCountersOfAnotherSignal: counters may be of any signal, of several of one task, and have a scale.
func TestCountersOfAnotherSignal(t *testing.T) {
	c := &Columns{Header: true, Separator: ",", Counters: true, TS: Column{Column: "t", Unit: "s"}, Task: Column{Column: "k"}, Signal: Column{Column: "s"},
		CPU: Column{Column: "ns", Unit: "ns"}, Cost: Column{Column: "ns", Per: "n", Scale: 1e-9}}
	r, err := newMapped(strings.NewReader("t,k,s,ns,n\n1,a,cpt,0,0\n1,a,cps,0,0\n2,a,cpt,500000000,100\n2,a,cps,500000000,1000\n"), c)
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, r)
	if len(got) != 2 || got[0].Signal != sample.CPT || got[0].Cost != 0.005 || got[1].Signal != sample.CPS || got[1].Cost != 0.0005 {
		t.Fatalf("%+v, %+v", got, r.Report())
	}
	if _, ok := got[0].Extras.Get(sample.Cycles); ok || got[0].CPU != 0.5 {
		t.Errorf("%+v", got[0])
	}
}

func TestParseColumns(t *testing.T) {
	_, err := ParseColumns("m.yaml", []byte("ts: {column: a, unit: h}\ntask: {colum: b}\ncounters: true\ncost: {column: c}\nseparator: '||'\n"))
	for _, want := range []string{"m.yaml:1: ts.unit", "m.yaml:2: task.colum", "task: nothing", "cpu: nothing", "cost.per", "separator"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
	if _, err := LoadColumns("none of that name"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	c := &Columns{Header: true, Separator: ";", TS: Column{Column: "t", Unit: "text"}, Task: Column{Column: "k"}, CPU: Column{Column: "u", Per: "w", Scale: 2}, Cost: Column{Is: "3"}, Signal: Column{Is: "cpi"}}
	if _, err := newMapped(strings.NewReader("t;k;w\n"), c); err == nil || !strings.Contains(err.Error(), "no column u") {
		t.Error(err)
	}
	r, err := newMapped(strings.NewReader("t;k;u;w\n2018-09-07T09:19:10.5;\"a;b\";3;4\n2018-09-07T09:19:10+01:00;a;3;4\n"), c)
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, r)
	if len(got) != 2 || got[0].TS != 1536311950500 || got[1].TS != 1536308350000 || got[0].Task != "a;b" || got[0].CPU != 1.5 || got[0].Cost != 3 {
		t.Errorf("%+v, %+v", got, r.Report())
	}
}

func FuzzPrometheus(f *testing.F) {
	f.Add([]byte(`{"a":[{"metric":{"__name__":"kepler_container_cpu_cycles_total"},"values":[[1,"2"],[2,"3"]]}]}`))
	f.Add([]byte(`{"metric":{"__name__":"kepler_container_bpf_cpu_time_us_total"},"values":[[1e300,"NaN"],[[],{}]]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := newPrometheus(bytes.NewReader(text))
		if err == nil {
			checkAll(t, r)
		}
	})
}

func FuzzMapped(f *testing.F) {
	f.Add([]byte("ts_s,machine,cgroup,id,cycles,instructions,cpu_usage_ns\n1,m,/a,7,1,2,3\n2,m,/a,7,4,5,6\n"), true)
	f.Add([]byte("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n"), false)
	f.Fuzz(func(t *testing.T, text []byte, counters bool) {
		name := "google2011"
		if counters {
			name = "cgroup-counters"
		}
		c, err := LoadColumns(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := newMapped(bytes.NewReader(text), c)
		if err == nil {
			checkAll(t, r)
		}
	})
}

// checkAll reads all samples: each must be one that a trace can hold.
func checkAll(t *testing.T, r Reader) {
	rows := 0
	for {
		var s sample.Sample
		err := r.Read(&s)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := trace.Check(&s); err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		rows++
	}
	if rep := r.Report(); rep.Rows != rows {
		t.Fatalf("%d samples, %+v", rows, rep)
	}
}
