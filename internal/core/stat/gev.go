package stat

import (
	"math"
	"slices"
)

// GEV is the generalised extreme value distribution with a location, a scale and a shape. Shape 0 is
// Gumbel's distribution. A shape above 0 has a heavy tail, one below 0 an upper bound (Coles, An
// Introduction to Statistical Modeling of Extreme Values, 3.1). CPI² fits its CPI with it (figure 7).
type GEV struct{ Location, Scale, Shape float64 }

// Mean is infinite for a shape of 1 or more.
func (g GEV) Mean() float64 {
	switch {
	case g.Shape >= 1:
		return math.Inf(1)
	case math.Abs(g.Shape) < tiny:
		return g.Location + g.Scale*eulerGamma
	}
	return g.Location + g.Scale*(math.Gamma(1-g.Shape)-1)/g.Shape
}

// StdDev is infinite for a shape of ½ or more.
func (g GEV) StdDev() float64 {
	switch {
	case g.Shape >= 0.5:
		return math.Inf(1)
	case math.Abs(g.Shape) < tiny:
		return g.Scale * math.Pi / math.Sqrt(6)
	}
	g1, g2 := math.Gamma(1-g.Shape), math.Gamma(1-2*g.Shape)
	return g.Scale * math.Sqrt(g2-g1*g1) / math.Abs(g.Shape)
}

// tiny is the distance from 0 below which a shape counts as Gumbel's.
const tiny = 1e-6

const eulerGamma = 0.57721566490153286

// reduced is t(x), where the distribution function is exp(−t).
func (g GEV) reduced(x float64) float64 {
	z := (x - g.Location) / g.Scale
	if math.Abs(g.Shape) < tiny {
		return math.Exp(-z)
	}
	base := 1 + g.Shape*z
	switch {
	case base > 0:
		return math.Pow(base, -1/g.Shape)
	case g.Shape > 0:
		return math.Inf(1) // below the lower bound
	}
	return 0 // above the upper bound
}

// LogProb implements Distribution.
func (g GEV) LogProb(x float64) float64 {
	t := g.reduced(x)
	if t == 0 || math.IsInf(t, 1) {
		return math.Inf(-1)
	}
	return (1+g.Shape)*math.Log(t) - t - math.Log(g.Scale)
}

// Above is the share of values above x.
func (g GEV) Above(x float64) float64 { return -math.Expm1(-g.reduced(x)) }

// Quantile is the value below which a share p of the values lies.
func (g GEV) Quantile(p float64) float64 {
	l := -math.Log(p)
	if math.Abs(g.Shape) < tiny {
		return g.Location - g.Scale*math.Log(l)
	}
	return g.Location + g.Scale*(math.Pow(l, -g.Shape)-1)/g.Shape
}

// Figure7 is the distribution of a web-search job's CPI, CPI² figure 7.
var Figure7 = GEV{Location: 1.73, Scale: 0.133, Shape: -0.0534}

// FitGEV fits by probability-weighted moments (Hosking, Wallis and Wood, Technometrics
// 27, 1985), which stay close to the truth with few values.
func FitGEV(values []float64) (GEV, bool) {
	n := len(values)
	if n < 3 {
		return GEV{}, false
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	var b0, b1, b2 float64
	for i, x := range sorted {
		j := float64(i)
		b0 += x
		b1 += x * j / float64(n-1)
		b2 += x * j * (j - 1) / (float64(n-1) * float64(n-2))
	}
	b0, b1, b2 = b0/float64(n), b1/float64(n), b2/float64(n)
	return gevOf(b0, b1, b2)
}

// FitGEV is FitGEV of the sketch's values, each bin's at its middle.
func (s *Sketch) FitGEV() (GEV, bool) {
	total := s.total()
	var b0, b1, b2, below, low float64
	for _, bin := range s.bins {
		x := binMiddle(bin.Bin)
		// The mean of x·F^r over the bin's part of the distribution, where F goes from low to high.
		below += bin.Count
		high := below / total
		b0 += x * (high - low)
		b1 += x * (high*high - low*low) / 2
		b2 += x * (high*high*high - low*low*low) / 3
		low = high
	}
	return gevOf(b0, b1, b2)
}

// gevOf is the distribution with these probability-weighted moments: the means of x, x·F and x·F².
func gevOf(b0, b1, b2 float64) (GEV, bool) {
	if !(2*b1-b0 > 0) {
		return GEV{}, false
	}
	c := (2*b1-b0)/(3*b2-b0) - math.Ln2/math.Log(3)
	k := 7.8590*c + 2.9554*c*c // the shape in that paper is the negative of GEV.Shape
	var g GEV
	if math.Abs(k) < tiny {
		g.Scale = (2*b1 - b0) / math.Ln2
		g.Location = b0 - eulerGamma*g.Scale
		return g, g.Scale > 0
	}
	gamma := math.Gamma(1 + k)
	g.Shape = -k
	g.Scale = (2*b1 - b0) * k / (gamma * (1 - math.Pow(2, -k)))
	g.Location = b0 + g.Scale*(gamma-1)/k
	return g, g.Scale > 0 && !math.IsInf(g.Scale, 0)
}
