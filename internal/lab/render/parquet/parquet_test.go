package parquet

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/lab/analyse"
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
