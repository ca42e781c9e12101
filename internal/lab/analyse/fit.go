package analyse

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/quell-dev/quell/internal/core/stat"
)

// Interval is an estimate with its confidence interval. Low and High are NaN where the
// data do not suffice for one.
type Interval struct {
	Value  float64 `json:"value"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Level  float64 `json:"level"`  // e.g. 0.95
	Method string  `json:"method"` // how the interval was found
	N      int     `json:"n"`
}

// apply applies an increasing function to the value and to both bounds.
func (i Interval) apply(to func(float64) float64) Interval {
	i.Value, i.Low, i.High = to(i.Value), to(i.Low), to(i.High)
	return i
}

// level is the confidence level of all intervals.
const level = 0.95

// Line is a least-squares line y = Intercept + Slope·x with its variances and p values.
type Line struct {
	Intercept, Slope       float64
	VarIntercept, VarSlope float64
	Cov                    float64 // of intercept and slope
	PIntercept, PSlope     float64 // two-sided, t with N−2 degrees of freedom
	N                      int
}

// Fit is ordinary least squares; false where the points determine no line: fewer than
// three, or all at one x.
func Fit(x, y []float64) (Line, bool) {
	n := float64(len(x))
	if len(x) < 3 || len(x) != len(y) {
		return Line{}, false
	}
	mx, my := stat.Mean(x), stat.Mean(y)
	var sxx, sxy float64
	for i := range x {
		sxx += (x[i] - mx) * (x[i] - mx)
		sxy += (x[i] - mx) * (y[i] - my)
	}
	if !(sxx > 1e-18*(1+mx*mx)) || math.IsInf(sxx, 0) {
		return Line{}, false
	}
	l := Line{Slope: sxy / sxx, N: len(x)}
	l.Intercept = my - l.Slope*mx
	var rss float64
	for i := range x {
		e := y[i] - l.Intercept - l.Slope*x[i]
		rss += e * e
	}
	s2 := rss / (n - 2)
	l.VarSlope = s2 / sxx
	l.VarIntercept = s2 * (1/n + mx*mx/sxx)
	l.Cov = -s2 * mx / sxx
	l.PSlope = pOf(l.Slope, l.VarSlope, n-2)
	l.PIntercept = pOf(l.Intercept, l.VarIntercept, n-2)
	return l, finite(l.Slope, l.Intercept)
}

// pOf is the two-sided p for the hypothesis that an estimate is 0.
func pOf(estimate, variance, df float64) float64 {
	if variance == 0 {
		if estimate == 0 {
			return 1
		}
		return 0
	}
	return 2 * student(df).Survival(math.Abs(estimate)/math.Sqrt(variance))
}

func student(df float64) distuv.StudentsT { return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df} }

// tQuantile is the two-sided t quantile for an interval of the level.
func tQuantile(df float64) float64 { return student(df).Quantile(0.5 + level/2) }

// variance is that of a sample, with n−1.
func variance(x []float64) float64 {
	m := stat.Mean(x)
	var sum float64
	for _, v := range x {
		sum += (v - m) * (v - m)
	}
	return sum / float64(len(x)-1)
}

func finite(xs ...float64) bool {
	for _, x := range xs {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}

// meanInterval is the mean of independent values with its t interval; NaN of none.
func meanInterval(x []float64, method string) Interval {
	i := Interval{Value: stat.Mean(x), Low: math.NaN(), High: math.NaN(), Level: level, Method: method, N: len(x)}
	if len(x) > 1 {
		h := tQuantile(float64(len(x)-1)) * math.Sqrt(variance(x)/float64(len(x)))
		i.Low, i.High = i.Value-h, i.Value+h
	}
	return i
}
