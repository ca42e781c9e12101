package analyse

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/quell-dev/quell/internal/core/stat"
)

// draws is the number of resamples of a bootstrap.
const draws = 2000

// Levels are measurements in two levels: runs, and iterations within a run.
type Levels [][]float64

// means are the runs' means.
func (l Levels) means() []float64 {
	m := make([]float64, 0, len(l))
	for _, run := range l {
		if len(run) > 0 {
			m = append(m, stat.Mean(run))
		}
	}
	return m
}

// minBootstrapRuns is the number of runs from which resampling them has the nominal coverage.
const minBootstrapRuns = 30

// RatioOfMeans is stat.Mean(a) ÷ stat.Mean(b), each the mean of its runs' means. With many runs
// the interval is a hierarchical bootstrap's: runs are drawn with replacement, then
// iterations within each (Kalibera and Jones, ISMM 2013, section 6). With few runs
// resampling is too narrow, and the interval is Welch's, of the runs' logarithms. With
// a single run on a side the variation between runs is unknown, and the interval is
// that of the iterations; Method says so.
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
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	ratios := make([]float64, 0, draws)
	for range draws {
		x, y := resample(a, r), resample(b, r)
		if y != 0 && finite(x/y) {
			ratios = append(ratios, x/y)
		}
	}
	if len(ratios) < draws/2 {
		return out
	}
	slices.Sort(ratios)
	out.Low, out.High = stat.Quantile(ratios, 0.5-level/2), stat.Quantile(ratios, 0.5+level/2)
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
		var s float64
		for range run {
			s += run[r.IntN(len(run))]
		}
		sum += s / float64(len(run))
		n++
	}
	return sum / float64(n)
}
