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
