package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s is %v, want %v ± %v", what, got, want, tolerance)
	}
}

// CPI², figure 7: the fit of a job's CPI. The paper gives its mean and standard deviation
// as 1.8 and 0.16, and the share above mean + 2σ.
func TestFigure7(t *testing.T) {
	g := Figure7
	within(t, "mean", g.Mean(), 1.80, 0.005)
	within(t, "σ", g.StdDev(), 0.16, 0.005)
	within(t, "share above mean + 2σ", g.Above(g.Mean()+2*g.StdDev()), 0.040, 0.0005)
	within(t, "share above its quantile", g.Above(g.Quantile(0.99)), 0.01, 1e-12)
}

// The moments agree with those of the density, integrated by the midpoint rule.
func TestDensities(t *testing.T) {
	for _, d := range []Distribution{distuv.Normal{Mu: 3, Sigma: 0.4}, distuv.LogNormal{Mu: 0.5, Sigma: 0.3}, distuv.Gamma{Alpha: 4, Beta: 2}, Figure7, GEV{Location: 2, Scale: 0.3}, GEV{Location: 2, Scale: 0.3, Shape: 0.1}} {
		lo, hi := d.Mean()-12*d.StdDev(), d.Mean()+60*d.StdDev()
		const steps = 400_000
		var mass, mean, square float64
		for i := range steps {
			x := lo + (hi-lo)*(float64(i)+0.5)/steps
			p := math.Exp(d.LogProb(x)) * (hi - lo) / steps
			mass, mean, square = mass+p, mean+p*x, square+p*x*x
		}
		within(t, fmt.Sprintf("%T", d)+"'s mass", mass, 1, 1e-4)
		within(t, fmt.Sprintf("%T", d)+"'s mean", mean, d.Mean(), 1e-3)
		within(t, fmt.Sprintf("%T", d)+"'s σ", math.Sqrt(square-mean*mean), d.StdDev(), 5e-3)
	}
	if (GEV{Scale: 1, Shape: 1}).Mean() != math.Inf(1) || (GEV{Scale: 1, Shape: 0.5}).StdDev() != math.Inf(1) {
		t.Error("moments of a tail that has none")
	}
}

// Each distribution is recovered from values drawn from it, and is the best of the four
// fits.
func TestFits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	normal := func() float64 { return 5 + 0.5*r.NormFloat64() }
	gamma := func() float64 { // with an integer shape: a sum of exponentials
		sum := 0.0
		for range 3 {
			sum += r.ExpFloat64()
		}
		return sum * 0.5
	}
	truth := GEV{Location: 1.73, Scale: 0.133, Shape: 0.15}
	for _, c := range []struct {
		name string
		draw func() float64
	}{
		{"normal", normal},
		{"log-normal", func() float64 { return math.Exp(0.3 + 0.6*r.NormFloat64()) }},
		{"gamma", gamma},
		{"GEV", func() float64 { return truth.Quantile(1 - r.Float64()) }},
	} {
		values := make([]float64, 20_000)
		for i := range values {
			values[i] = c.draw()
		}
		fits := Fits(values)
		if len(fits) != 4 || fits[0].Name != c.name {
			t.Errorf("%s: the best of %d is %s", c.name, len(fits), fits[0].Name)
			continue
		}
		if !slices.IsSortedFunc(fits, func(a, b Fit) int { return int(math.Copysign(1, a.AIC-b.AIC)) }) {
			t.Errorf("%s: not by AIC", c.name)
		}
		var got, want []float64
		switch d := fits[0].Distribution.(type) {
		case distuv.Normal:
			got, want = []float64{d.Mu, d.Sigma}, []float64{5, 0.5}
		case distuv.LogNormal:
			got, want = []float64{d.Mu, d.Sigma}, []float64{0.3, 0.6}
		case distuv.Gamma:
			got, want = []float64{d.Alpha, d.Beta}, []float64{3, 2}
		case GEV:
			got, want = []float64{d.Location, d.Scale, d.Shape}, []float64{truth.Location, truth.Scale, truth.Shape}
		}
		for i := range got {
			within(t, c.name+"'s parameter", got[i], want[i], 0.03*max(1, want[i]))
		}
	}
}

func TestNothingToFit(t *testing.T) {
	for _, values := range [][]float64{nil, {1}, {2, 2, 2, 2}, {-1, -1}} {
		if fits := Fits(values); len(fits) != 0 {
			t.Errorf("%v: %d fits", values, len(fits))
		}
	}
	for _, f := range Fits([]float64{-1, 0, 1, 2, 5}) {
		if f.Name == "gamma" || f.Name == "log-normal" {
			t.Errorf("%s fits values below 0", f.Name)
		}
	}
}
