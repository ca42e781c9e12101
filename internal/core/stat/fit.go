package stat

import (
	"math"
	"slices"
)

// Distribution is a distribution of a real value.
type Distribution interface {
	Name() string
	Mean() float64
	StdDev() float64
	// LogPDF is the logarithm of the density at x; −Inf where the density is 0.
	LogPDF(x float64) float64
}

// Normal is the normal distribution.
type Normal struct{ Mu, Sigma float64 }

func (Normal) Name() string      { return "normal" }
func (n Normal) Mean() float64   { return n.Mu }
func (n Normal) StdDev() float64 { return n.Sigma }

// LogPDF implements Distribution.
func (n Normal) LogPDF(x float64) float64 {
	z := (x - n.Mu) / n.Sigma
	return -z*z/2 - math.Log(n.Sigma) - logSqrt2Pi
}

// logSqrt2Pi is ln(2π)/2.
const logSqrt2Pi = 0.91893853320467274178

// LogNormal is the distribution of a value whose logarithm is normal.
type LogNormal struct{ Mu, Sigma float64 }

func (LogNormal) Name() string    { return "log-normal" }
func (l LogNormal) Mean() float64 { return math.Exp(l.Mu + l.Sigma*l.Sigma/2) }
func (l LogNormal) StdDev() float64 {
	return l.Mean() * math.Sqrt(math.Expm1(l.Sigma*l.Sigma))
}

// LogPDF implements Distribution.
func (l LogNormal) LogPDF(x float64) float64 {
	if x <= 0 {
		return math.Inf(-1)
	}
	return Normal(l).LogPDF(math.Log(x)) - math.Log(x)
}

// Gamma is the gamma distribution with a shape and a scale.
type Gamma struct{ Shape, Scale float64 }

func (Gamma) Name() string      { return "gamma" }
func (g Gamma) Mean() float64   { return g.Shape * g.Scale }
func (g Gamma) StdDev() float64 { return math.Sqrt(g.Shape) * g.Scale }

// LogPDF implements Distribution.
func (g Gamma) LogPDF(x float64) float64 {
	if x <= 0 {
		return math.Inf(-1)
	}
	lg, _ := math.Lgamma(g.Shape)
	return (g.Shape-1)*math.Log(x) - x/g.Scale - lg - g.Shape*math.Log(g.Scale)
}

// GEV is the generalised extreme value distribution with a location, a scale and a shape.
// Shape 0 is Gumbel's distribution. A shape above 0 has a heavy tail, one below 0 an
// upper bound (Coles, An Introduction to Statistical Modeling of Extreme Values, 3.1).
// CPI² fits its CPI with it (figure 7).
type GEV struct{ Location, Scale, Shape float64 }

func (GEV) Name() string { return "GEV" }

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

// LogPDF implements Distribution.
func (g GEV) LogPDF(x float64) float64 {
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

// Fit is a distribution fitted to values.
type Fit struct {
	Distribution
	// LogLikelihood is that of the values; among fits with as many parameters the largest
	// is the best. AIC includes a penalty for the parameters (Akaike, 1974): the smallest
	// is the best.
	LogLikelihood, AIC float64
}

// Fits fits the four distributions of CPI²'s figure 7 to values and returns the best
// first. Log-normal and gamma need values above 0; all need values that differ.
func Fits(values []float64) []Fit {
	var fits []Fit
	add := func(d Distribution, parameters float64, ok bool) {
		if !ok {
			return
		}
		f := Fit{Distribution: d}
		for _, x := range values {
			f.LogLikelihood += d.LogPDF(x)
		}
		if f.AIC = 2*parameters - 2*f.LogLikelihood; !math.IsNaN(f.AIC) {
			fits = append(fits, f)
		}
	}
	n, ok := FitNormal(values)
	add(n, 2, ok)
	l, ok := FitLogNormal(values)
	add(l, 2, ok)
	g, ok := FitGamma(values)
	add(g, 2, ok)
	e, ok := FitGEV(values)
	add(e, 3, ok)
	slices.SortStableFunc(fits, func(a, b Fit) int {
		switch {
		case a.AIC < b.AIC:
			return -1
		case a.AIC > b.AIC:
			return 1
		}
		return 0
	})
	return fits
}

// FitNormal fits by moments, with the unbiased variance.
func FitNormal(values []float64) (Normal, bool) {
	var m Moments
	for _, x := range values {
		m.Add(x, 1)
	}
	return Normal{m.Mean, m.StdDev()}, m.StdDev() > 0
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
	return LogNormal(n), ok
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
		psi, psi1 := digamma(k)
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
	return Gamma{k, mean / k}, true
}

// digamma returns the derivative of log Γ and the derivative of that, by recurrence to
// where their asymptotic series hold (Abramowitz and Stegun, 6.3.18, 6.4.12).
func digamma(x float64) (psi, psi1 float64) {
	for ; x < 10; x++ {
		psi -= 1 / x
		psi1 += 1 / (x * x)
	}
	r := 1 / (x * x)
	psi += math.Log(x) - 1/(2*x) - r*(1./12-r*(1./120-r*(1./252-r/240)))
	psi1 += 1/x + r/2 + r/x*(1./6-r*(1./30-r*(1./42-r/30)))
	return psi, psi1
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
