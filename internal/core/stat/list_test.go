package stat

import (
	"math"
	"testing"
)

func TestRanks(t *testing.T) {
	got := ranks([]float64{3, 1, 3, 2})
	for i, want := range []float64{3.5, 1, 3.5, 2} {
		if got[i] != want {
			t.Errorf("%v", got)
			break
		}
	}
}

func TestQuantile(t *testing.T) {
	for p, want := range map[float64]float64{0: 1, 0.5: 2.5, 0.9: 3.7, 1: 4} {
		if got := Quantile([]float64{1, 2, 3, 4}, p); math.Abs(got-want) > 1e-12 {
			t.Errorf("%g: %g, want %g", p, got, want)
		}
	}
	if !math.IsNaN(Quantile(nil, 0.5)) {
		t.Error("a quantile of nothing")
	}
}

// A value that is not known has no rank, and the ranks of all end.
func TestRankCorrelation(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		x, y []float64
		want float64
	}{
		{[]float64{1, 2, 3, 4}, []float64{10, 20, 30, 1000}, 1},
		{[]float64{1, 2, 3, inf}, []float64{4, 3, 2, 1}, -1},
		{[]float64{1, 2, 2, 3}, []float64{1, 2, 2, 3}, 1},
		{[]float64{1, nan, 3, nan}, []float64{1, 2, 3, 4}, nan},
		{[]float64{1, 2, 3, 4}, []float64{nan, 2, 3, 4}, nan},
		{[]float64{2, 2, 2}, []float64{1, 2, 3}, nan},
		{nil, nil, nan},
	} {
		if got := Spearman(c.x, c.y); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%v and %v: %v, want %v", c.x, c.y, got, c.want)
		}
	}
}
