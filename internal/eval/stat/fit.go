// Package stat has the statistics of evaluations: distributions fitted to values, exact
// confidence intervals, logistic regression. It is separate from core/stat so that the
// agent does not link gonum.
package stat

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// The distributions of Fits, with GEV.
type (
	Normal    = distuv.Normal
	LogNormal = distuv.LogNormal
	Gamma     = distuv.Gamma
)

// Distribution is a distribution of a real value.
type Distribution interface {
	Mean() float64
	StdDev() float64
	// LogProb is the logarithm of the density at x; −Inf where the density is 0.
	LogProb(x float64) float64
}

// GEV is the generalised extreme value distribution with a location, a scale and a shape.
// Shape 0 is Gumbel's distribution. A shape above 0 has a heavy tail, one below 0 an
// upper bound (Coles, An Introduction to Statistical Modeling of Extreme Values, 3.1).
// CPI² fits its CPI with it (figure 7).
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

// Fit is a distribution fitted to values.
type Fit struct {
	Distribution
	Name string
	// LogLikelihood is that of the values; among fits with as many parameters the largest
	// is the best. AIC includes a penalty for the parameters (Akaike, 1974): the smallest
	// is the best.
	LogLikelihood, AIC float64
}

// Fits fits the four distributions of CPI²'s figure 7 to values and returns the best
// first. Log-normal and gamma need values above 0; all need values that differ.
func Fits(values []float64) []Fit {
	var fits []Fit
	add := func(name string, d Distribution, parameters float64, ok bool) {
		if !ok {
			return
		}
		f := Fit{Distribution: d, Name: name}
		for _, x := range values {
			f.LogLikelihood += d.LogProb(x)
		}
		if f.AIC = 2*parameters - 2*f.LogLikelihood; !math.IsNaN(f.AIC) {
			fits = append(fits, f)
		}
	}
	n, ok := FitNormal(values)
	add("normal", n, 2, ok)
	l, ok := FitLogNormal(values)
	add("log-normal", l, 2, ok)
	g, ok := FitGamma(values)
	add("gamma", g, 2, ok)
	e, ok := FitGEV(values)
	add("GEV", e, 3, ok)
	slices.SortStableFunc(fits, func(a, b Fit) int { return cmp.Compare(a.AIC, b.AIC) })
	return fits
}

// FitNormal fits by moments, with the unbiased variance.
func FitNormal(values []float64) (Normal, bool) {
	mean, sd := stat.MeanStdDev(values, nil)
	return Normal{Mu: mean, Sigma: sd}, sd > 0
}

// FitLogNormal fits a normal distribution to the logarithms.
func FitLogNormal(values []float64) (LogNormal, bool) {
	logs := make([]float64, len(values))
	for i, x := range values {
		if !(x > 0) {
			return LogNormal{}, false
		}
		logs[i] = math.Log(x)
	}
	n, ok := FitNormal(logs)
	return LogNormal{Mu: n.Mu, Sigma: n.Sigma}, ok
}

// FitGamma fits by maximum likelihood with Newton's method in 1/shape (Minka, Estimating
// a Gamma distribution, 2002), which needs a few steps.
func FitGamma(values []float64) (Gamma, bool) {
	var sum, logs float64
	for _, x := range values {
		if !(x > 0) {
			return Gamma{}, false
		}
		sum, logs = sum+x, logs+math.Log(x)
	}
	n := float64(len(values))
	mean := sum / n
	s := math.Log(mean) - logs/n
	if !(s > 0) {
		return Gamma{}, false
	}
	k := (3 - s + math.Sqrt((s-3)*(s-3)+24*s)) / (12 * s)
	for range 50 {
		psi, psi1 := mathext.Digamma(k), mathext.Zeta(2, k) // the derivative is Hurwitz' zeta function
		next := 1 / (1/k + (math.Log(k)-s-psi)/(k*k*(1/k-psi1)))
		if !(next > 0) {
			break
		}
		if math.Abs(next-k) <= 1e-12*k {
			k = next
			break
		}
		k = next
	}
	return Gamma{Alpha: k, Beta: k / mean}, true
}

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
