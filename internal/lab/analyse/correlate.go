package analyse

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat/combin"
)

// PermutationP is the two-sided p of the correlation of the pairs: over all
// permutations for at most 7 pairs, else over perms permutations drawn with the seed.
// The identity is counted among them, so p is never 0.
func PermutationP(x, y []float64, of func(x, y []float64) float64, perms int, seed uint64) float64 {
	want := math.Abs(of(x, y))
	if math.IsNaN(want) {
		return math.NaN()
	}
	z := slices.Clone(y)
	hits, total := 0, 0
	count := func() {
		total++
		if math.Abs(of(x, z)) >= want-1e-12 {
			hits++
		}
	}
	if len(y) <= 7 {
		order := make([]int, len(y))
		for orders := combin.NewPermutationGenerator(len(y), len(y)); orders.Next(); {
			for i, k := range orders.Permutation(order) {
				z[i] = y[k]
			}
			count()
		}
		return float64(hits) / float64(total)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	count()
	for range perms {
		r.Shuffle(len(z), func(i, j int) { z[i], z[j] = z[j], z[i] })
		count()
	}
	return float64(hits) / float64(total)
}

// Adjust returns p values adjusted for the false discovery rate (Benjamini and
// Hochberg 1995); NaN ones are left out and stay NaN.
func Adjust(p []float64) []float64 {
	var order []int
	q := make([]float64, len(p))
	for i, v := range p {
		if q[i] = v; !math.IsNaN(v) {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(p[b], p[a]) })
	m, least := float64(len(order)), 1.0
	for k, i := range order {
		least = min(least, p[i]*m/(m-float64(k)))
		q[i] = least
	}
	return q
}
