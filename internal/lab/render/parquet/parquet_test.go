package parquet

import (
	"bytes"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func read[T any](t *testing.T, b *bytes.Buffer) []T {
	t.Helper()
	rows, err := parquet.Read[T](bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestValuesComeBack(t *testing.T) {
	x := analyse.Results{Stamps: []string{"simulated"}, Degradations: []analyse.Degradation{{Levels: []study.Level{{Factor: "placement", Value: "near"}}, Part: "fg", Workload: "a",
		Percent: analyse.Interval{Value: 23.1, Low: 22.7, High: math.NaN(), Level: 0.95, Method: "m", N: 6}}}}
	var b bytes.Buffer
	if err := Values(&b, &x); err != nil {
		t.Fatal(err)
	}
	rows := read[ValueRow](t, &b)
	v, low := 23.1, 22.7
	want := ValueRow{"degradation", "percent", "placement=near", "fg", "a", "%", &v, &low, nil, 0.95, "m", 6}
	if len(rows) != 5 {
		t.Fatalf("%d rows", len(rows))
	}
	if d := cmp.Diff(want, rows[0]); d != "" {
		t.Error(d)
	}
}

func TestSamplesComeBack(t *testing.T) {
	f, err := result.Create(filepath.Join(t.TempDir(), "r"), result.Lock{Study: "s", Hash: "h"})
	if err != nil {
		t.Fatal(err)
	}
	var runs []result.Run
	var want []SampleRow
	for n := range 3 {
		run := result.Run{CellKey: "c", N: n, Try: 1}
		a, err := f.Begin("c", n, 1)
		if err != nil {
			t.Fatal(err)
		}
		for s := range 5 {
			at := time.Duration(s+1) * time.Second
			if err := a.Sample(result.Sample{At: at, Values: map[string]float64{"cpu.fg": float64(s), "psi": 0.5}}); err != nil {
				t.Fatal(err)
			}
			want = append(want, SampleRow{"c", int32(n), 1, int64(at), "cpu.fg", float64(s)}, SampleRow{"c", int32(n), 1, int64(at), "psi", 0.5})
		}
		if err := a.Finish(&run); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	var b bytes.Buffer
	if err := Samples(&b, f, runs); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, read[SampleRow](t, &b)); d != "" {
		t.Error(d)
	}
	if err := Samples(&b, f, []result.Run{{CellKey: "none"}}); err == nil {
		t.Error("samples of a run that is not there were written")
	}
}
