package analyse

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/quell-dev/quell/internal/core/stat"
)

// draws is the number of resamples of a bootstrap.
const draws = 2000

// Ratio is work and its time, or time and its work: a value that is a quotient of sums.
// The mean of quotients would be another: iterations of 1, 1, 3 and 3 s are 4 in 8 s,
// and the mean of their rates is 0.67/s.
type Ratio struct{ Of, By float64 }

// total is the quotient of the sums, NaN of nothing.
func total(all []Ratio) float64 {
	var t Ratio
	for _, r := range all {
		t.Of, t.By = t.Of+r.Of, t.By+r.By
	}
	return t.Of / t.By
}

// Levels are measurements in two levels: runs, and iterations within a run.
type Levels [][]Ratio

// means are the runs' values.
func (l Levels) means() []float64 {
	m := make([]float64, 0, len(l))
	for _, run := range l {
		if len(run) > 0 {
			m = append(m, total(run))
		}
	}
	return m
}

// mean is the mean over runs. The interval is that of the runs, by t; of a single run it is
// the bootstrap's of the iterations.
func (l Levels) mean(seed uint64) Interval {
	i := meanInterval(l.means(), "t over runs")
	if i.N != 1 || len(l) != 1 || len(l[0]) < 2 {
		return i
	}
	i.bootstrap(seed, func(r *rand.Rand) float64 { return resample(l, r) })
	i.Method = "bootstrap of the iterations of a single run; without variation between runs"
	return i
}

// bootstrap sets the bounds to the percentiles of resamples; false if too few are numbers.
func (i *Interval) bootstrap(seed uint64, draw func(*rand.Rand) float64) bool {
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	drawn := make([]float64, 0, draws)
	for range draws {
		if v := draw(r); finite(v) {
			drawn = append(drawn, v)
		}
	}
	if len(drawn) < draws/2 {
		return false
	}
	slices.Sort(drawn)
	i.Low, i.High = stat.Quantile(drawn, 0.5-level/2), stat.Quantile(drawn, 0.5+level/2)
	return true
}

// single reports whether there is nothing to draw from: each resample would be the same.
func (l Levels) single() bool {
	n := 0
	for _, run := range l {
		n += len(run)
	}
	return n == 1
}

// minBootstrapRuns is the number of runs from which resampling them has the nominal coverage.
const minBootstrapRuns = 30

// RatioOfMeans is the mean of a's runs ÷ that of b's, each run's value a quotient of sums. With many runs
// the interval is a hierarchical bootstrap's: runs are drawn with replacement, then
// iterations within each (Kalibera and Jones, ISMM 2013, section 6). With few runs
// resampling is too narrow, and the interval is Welch's, of the runs' logarithms. With
// a single run on a side the variation between runs is unknown, and the interval is
// that of the iterations; Method says so. A single figure, e.g. a command's, has none.
func RatioOfMeans(a, b Levels, seed uint64) Interval {
	ma, mb := a.means(), b.means()
	out := Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN(), Level: level, N: min(len(ma), len(mb)), Method: "none"}
	if len(ma) == 0 || len(mb) == 0 || stat.Mean(mb) == 0 {
		return out
	}
	out.Value = stat.Mean(ma) / stat.Mean(mb)
	if n := min(len(ma), len(mb)); n >= 2 && n < minBootstrapRuns && slices.Min(ma) > 0 && slices.Min(mb) > 0 {
		return welch(ma, mb, out)
	}
	if a.single() || b.single() || !out.bootstrap(seed, func(r *rand.Rand) float64 { x := resample(a, r); return x / resample(b, r) }) {
		return out
	}
	out.Method = "hierarchical bootstrap, runs then iterations"
	if len(ma) < 2 || len(mb) < 2 {
		out.Method = "bootstrap of iterations within single runs; without variation between runs"
	}
	return out
}

// welch is the confidence interval of a ratio of means from the difference of the runs'
// logarithms, with Welch's degrees of freedom.
func welch(a, b []float64, out Interval) Interval {
	la, lb := logs(a), logs(b)
	va, vb := variance(la)/float64(len(la)), variance(lb)/float64(len(lb))
	if va+vb == 0 {
		out.Low, out.High, out.Method = out.Value, out.Value, "Welch's t of the logarithms of runs"
		return out
	}
	df := (va + vb) * (va + vb) / (va*va/float64(len(la)-1) + vb*vb/float64(len(lb)-1))
	h := tQuantile(df) * math.Sqrt(va+vb)
	out.Low, out.High = out.Value*math.Exp(-h), out.Value*math.Exp(h)
	out.Method = "Welch's t of the logarithms of runs"
	return out
}

func logs(x []float64) []float64 {
	l := make([]float64, len(x))
	for i, v := range x {
		l[i] = math.Log(v)
	}
	return l
}

// resample draws runs, and iterations within them, and returns the mean of the
// runs' means.
func resample(l Levels, r *rand.Rand) float64 {
	var sum float64
	n := 0
	for range l {
		run := l[r.IntN(len(l))]
		if len(run) == 0 {
			continue
		}
		var s Ratio
		for range run {
			one := run[r.IntN(len(run))]
			s.Of, s.By = s.Of+one.Of, s.By+one.By
		}
		sum += s.Of / s.By
		n++
	}
	return sum / float64(n)
}
