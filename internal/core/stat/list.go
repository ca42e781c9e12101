package stat

import (
	"cmp"
	"math"
	"slices"
)

// Mean is the arithmetic mean; NaN of nothing.
func Mean(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// Quantile of sorted values, linear between them (Hyndman and Fan's type 7); NaN of nothing.
func Quantile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	h := p * float64(len(sorted)-1)
	i := int(h)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (h-float64(i))*(sorted[i+1]-sorted[i])
}

// Pearson is the product-moment correlation; NaN where either side does not
// vary or there are fewer than two pairs.
func Pearson(x, y []float64) float64 {
	if len(x) < 2 || len(x) != len(y) {
		return math.NaN()
	}
	mx, my := Mean(x), Mean(y)
	var xx, yy, xy float64
	for i := range x {
		xx += (x[i] - mx) * (x[i] - mx)
		yy += (y[i] - my) * (y[i] - my)
		xy += (x[i] - mx) * (y[i] - my)
	}
	if !(xx > 0) || !(yy > 0) {
		return math.NaN()
	}
	return min(max(xy/math.Sqrt(xx)/math.Sqrt(yy), -1), 1)
}

// Spearman is Pearson's correlation of the ranks; ties share their mean rank. NaN if a value is.
func Spearman(x, y []float64) float64 { return Pearson(ranks(x), ranks(y)) }

func ranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(x[a], x[b]) })
	r := make([]float64, len(x))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && cmp.Compare(x[order[j]], x[order[i]]) == 0 { // also of NaN
			j++
		}
		for k := i; k < j; k++ {
			r[order[k]] = min(float64(i+j+1)/2, max(x[order[k]], math.Inf(1))) // NaN stays NaN
		}
		i = j
	}
	return r
}
