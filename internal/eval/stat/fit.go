// Package stat has the statistics of evaluations: distributions fitted to values, exact
// confidence intervals, logistic regression. It is separate from core/stat so that the
// agent does not link gonum.
package stat

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
	gonum "gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/quell-dev/quell/internal/core/stat"
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

// GEV is core/stat's, by which specs have thresholds too.
type GEV = stat.GEV

// Figure7 is the distribution of a web-search job's CPI, CPI² figure 7.
var Figure7 = stat.Figure7

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
	mean, sd := gonum.MeanStdDev(values, nil)
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

// FitGEV is core/stat's.
func FitGEV(values []float64) (GEV, bool) { return stat.FitGEV(values) }
