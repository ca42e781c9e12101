package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Quantiles equal those of the sorted values within the documented accuracy, for every
// distribution and scale.
func TestSketchQuantiles(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for name, draw := range map[string]func() float64{
		"normal":       func() float64 { return max(0, 1.8+0.16*r.NormFloat64()) },
		"heavy tail":   func() float64 { return math.Exp(2 * r.NormFloat64()) },
		"microseconds": func() float64 { return 1e-6 * (1 + r.Float64()) },
		"many zeros":   func() float64 { return max(0, r.NormFloat64()) },
	} {
		var s Sketch
		values := make([]float64, 20_000)
		for i := range values {
			x := float32(draw())
			values[i] = float64(x)
			s.Add(x, 1)
		}
		slices.Sort(values)
		for _, p := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
			want := values[max(0, int(math.Ceil(p*float64(len(values))))-1)]
			if got := s.Quantile(p); math.Abs(got-want) > SketchAccuracy*want {
				t.Errorf("%s: quantile %v is %v, want %v within %v of it", name, p, got, want, SketchAccuracy)
			}
		}
	}
}

// The sketch does not depend on the order or partition of the values. A weight of two
// equals the value twice.
func TestSketchMerges(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var whole, a, b Sketch
	for i := range 5000 {
		x := float32(math.Exp(r.NormFloat64()))
		whole.Add(x, 1)
		if i%3 == 0 {
			a.Add(x, 1)
		} else {
			b.Add(x, 0.5)
		}
	}
	a.Merge(&b, 2)
	if !slices.Equal(a.Bins(), whole.Bins()) {
		t.Errorf("merged of parts: %v\nof the whole: %v", a.Bins(), whole.Bins())
	}
	var empty Sketch
	empty.Merge(&whole, 1)
	if !slices.Equal(empty.Bins(), whole.Bins()) {
		t.Error("merged into an empty one it is another")
	}
	before := slices.Clone(whole.Bins())
	whole.Merge(&Sketch{}, 1)
	if !slices.Equal(whole.Bins(), before) {
		t.Error("an empty one changed it")
	}
	if !slices.IsSortedFunc(whole.Bins(), func(x, y SketchBin) int { return int(x.Bin - y.Bin) }) {
		t.Error("bins out of order")
	}
}

func TestSketchTakesWhatCanBeMeasured(t *testing.T) {
	var s Sketch
	if !math.IsNaN(s.Quantile(0.5)) {
		t.Errorf("the median of nothing is %v", s.Quantile(0.5))
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), -1} {
		s.Add(float32(x), 1)
	}
	if len(s.Bins()) != 0 {
		t.Errorf("took what is no value: %v", s.Bins())
	}
	s.Add(float32(math.Copysign(0, -1)), 1)
	if got := s.Quantile(1); got != 0 {
		t.Errorf("minus zero is %v", got)
	}
	s.Add(math.MaxFloat32, 1)
	if got := s.Quantile(1); math.IsInf(got, 0) || BinOf(math.MaxFloat32) >= Bins {
		t.Errorf("the largest is %v in bin %d", got, BinOf(math.MaxFloat32))
	}
}

// The fit and the moments agree with those of the values.
func TestSketchFits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, truth := range []GEV{Figure7, {1, 0.3, 0.2}, {1, 0.3, 0}} {
		var s Sketch
		var m Moments
		values := make([]float64, 20_000)
		for i := range values {
			values[i] = truth.Quantile(r.Float64())
			s.Add(float32(values[i]), 2)
			m.Add(values[i], 1)
		}
		want, _ := FitGEV(values)
		got, ok := s.FitGEV()
		if !ok || math.Abs(got.Location-want.Location) > 0.005 || math.Abs(got.Scale-want.Scale) > 0.005 || math.Abs(got.Shape-want.Shape) > 0.02 {
			t.Errorf("%v: by the sketch %v, by values %v", truth, got, want)
		}
		if mean, sd := s.MeanStdDev(); math.Abs(mean-m.Mean) > 0.002 || math.Abs(sd-m.StdDev()) > 0.005 {
			t.Errorf("%v: mean %v and σ %v, want %v and %v", truth, mean, sd, m.Mean, m.StdDev())
		}
	}
	var empty Sketch
	if g, ok := empty.FitGEV(); ok {
		t.Errorf("nothing is %v", g)
	}
}
