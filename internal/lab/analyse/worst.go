package analyse

import (
	"math"
	"slices"
)

// worstInterval is a set's highest degradation over a machine's best mapping, Best.Worst, with
// an interval that takes into account that worst and best were selected by their
// measured values. That degradation is the largest of the ratios of two mappings'
// times, over all machines and ordered pairs of mappings. The largest of K unknown
// values lies above the largest of their lower bounds with 97.5 % if each bound holds
// with 1 − 2.5 %/K (Bonferroni), and below the largest of their upper bounds with 97.5
// % if each bound holds alone, since one of them is that of the largest value. The
// paper has no interval; this one is conservative.
//
// The model of a machine's times is mapping × repetition × noise (randomised blocks),
// over the repetitions that have all its mappings, so each machine has one deviation,
// with (mappings−1)·(repetitions−1) degrees of freedom.
func worstInterval(value float64, parts []*mappedPart, unpinned string) Interval {
	out := Interval{Value: value, Low: math.NaN(), High: math.NaN(), Level: level, N: math.MaxInt,
		Method: "largest of all ratios of two mappings, lower bounds by Bonferroni; randomised blocks"}
	type blocks struct {
		means    []float64 // of the logarithms of each mapping's times
		variance float64   // of a mean
		df       float64
	}
	var all []blocks
	pairs := 0.0
	for _, p := range parts {
		names := slices.DeleteFunc(sortedKeys(p.times), func(n string) bool { return n == unpinned })
		if len(names) < 2 {
			continue
		}
		var whole []int
		for _, n := range sortedKeys(p.times[names[0]]) {
			if !slices.ContainsFunc(names, func(name string) bool { return !(p.times[name][n] > 0) }) {
				whole = append(whole, n)
			}
		}
		out.N = min(out.N, len(whole))
		if len(whole) < 2 {
			return unknown(out)
		}
		b := blocks{df: float64((len(names) - 1) * (len(whole) - 1))}
		byBlock, grand := make([]float64, len(whole)), 0.0
		for _, name := range names {
			sum := 0.0
			for k, n := range whole {
				t := math.Log(p.times[name][n])
				sum += t
				byBlock[k] += t / float64(len(names))
			}
			b.means = append(b.means, sum/float64(len(whole)))
			grand += sum / float64(len(whole)*len(names))
		}
		rss := 0.0
		for i, name := range names {
			for k, n := range whole {
				e := math.Log(p.times[name][n]) - b.means[i] - byBlock[k] + grand
				rss += e * e
			}
		}
		b.variance = rss / b.df / float64(len(whole))
		all = append(all, b)
		pairs += float64(len(names) * (len(names) - 1))
	}
	if len(all) == 0 {
		return unknown(out)
	}
	tail := (1 - level) / 2
	low, high := 0.0, 0.0 // no mapping is better than the best
	for _, b := range all {
		ratio := slices.Max(b.means) - slices.Min(b.means)
		se := math.Sqrt(2 * b.variance)
		low = max(low, ratio-student(b.df).Quantile(1-tail/pairs)*se)
		high = max(high, ratio+student(b.df).Quantile(1-tail)*se)
	}
	out.Low, out.High = 100*math.Expm1(low), 100*math.Expm1(high)
	return out
}

func unknown(i Interval) Interval {
	if i.N == math.MaxInt {
		i.N = 0
	}
	i.Method = "none: no two repetitions with every mapping"
	return i
}
