package analyse

import "math"

// Pairs are the points of one machine: x[i] belongs to y[i].
type Pairs struct{ X, Y []float64 }

// fewMachines is the number of machines below which leaving out one at a time does not
// show how machines differ.
const fewMachines = 4

// CorrelationInterval is the correlation of all machines' points together, with a 95 %
// interval. The points of one machine are not independent, so the interval is from
// leaving out one machine at a time: the delete-one-group jackknife of Fisher's z
// (Efron and Stein 1981; Miller 1974), t with one degree of freedom less than there are
// machines. With fewer than fewMachines it leaves out one point at a time, and Method
// says so; the difference between machines is then not in the interval. Low and High
// are NaN if neither is possible: fewer than four points, or all on a line.
func CorrelationInterval(machines []Pairs, of func(x, y []float64) float64) Interval {
	var groups []Pairs // the groups that are left out, one at a time
	all := Pairs{}
	for _, m := range machines {
		if len(m.X) > 0 {
			groups = append(groups, m)
			all.X, all.Y = append(all.X, m.X...), append(all.Y, m.Y...)
		}
	}
	method := "jackknife over machines of Fisher's z"
	if len(groups) < fewMachines {
		groups, method = nil, "jackknife over runs of Fisher's z; without variation between machines"
		for i := range all.X {
			groups = append(groups, Pairs{all.X[i : i+1], all.Y[i : i+1]})
		}
	}
	out := Interval{Value: of(all.X, all.Y), Low: math.NaN(), High: math.NaN(), Level: level, Method: method, N: len(all.X)}
	z := math.Atanh(out.Value)
	if len(groups) < fewMachines || !finite(z) {
		return out
	}
	var left []float64
	rest := Pairs{make([]float64, 0, len(all.X)), make([]float64, 0, len(all.Y))}
	from := 0
	for _, g := range groups {
		to := from + len(g.X)
		rest.X = append(append(rest.X[:0], all.X[:from]...), all.X[to:]...)
		rest.Y = append(append(rest.Y[:0], all.Y[:from]...), all.Y[to:]...)
		from = to
		left = append(left, math.Atanh(of(rest.X, rest.Y)))
	}
	if !finite(left...) {
		return out
	}
	n := float64(len(left))
	// The jackknife's variance: (n−1)/n of the sum of squares about the mean.
	h := tQuantile(n-1) * math.Sqrt((n-1)*(n-1)/n*variance(left))
	out.Low, out.High = math.Tanh(z-h), math.Tanh(z+h)
	return out
}
