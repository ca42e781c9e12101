package stat

import "math"

// ShareLowerBound is the lower end of the exact one-sided confidence interval of a share
// (Clopper and Pearson, Biometrika 26, 1934): the least share at which k or more
// successes of n have at least the probability 1 − confidence. It is 0 if k or n is 0.
func ShareLowerBound(k, n int, confidence float64) float64 {
	if k <= 0 || n <= 0 {
		return 0
	}
	return bisect(0, 1, func(p float64) bool { return binomialFrom(k, n, p) < 1-confidence })
}

// ShareInterval is the exact two-sided 95 % confidence interval of a share.
func ShareInterval(k, n int) (low, high float64) {
	const side = 0.975
	return ShareLowerBound(k, n, side), 1 - ShareLowerBound(n-k, n, side)
}

// RateUpperBound is the upper end of the exact one-sided confidence interval of a Poisson mean
// when k events were seen (Garwood, Biometrika 28, 1936).
func RateUpperBound(k int, confidence float64) float64 {
	high := float64(k) + 10*math.Sqrt(float64(k)+1) + 10
	return bisect(0, high, func(mean float64) bool { return poissonTo(k, mean) > 1-confidence })
}

// bisect returns the point where below, true at first, becomes false.
func bisect(low, high float64, below func(float64) bool) float64 {
	for range 60 {
		if mid := (low + high) / 2; below(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// binomialFrom is the probability of at least k successes of n.
func binomialFrom(k, n int, p float64) float64 {
	switch {
	case p <= 0:
		return 0
	case p >= 1:
		return 1
	}
	var sum float64
	for i := k; i <= n; i++ {
		sum += math.Exp(choose(n, i) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}

// choose is the logarithm of the binomial coefficient.
func choose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

// poissonTo is the probability of at most k events.
func poissonTo(k int, mean float64) float64 {
	if mean <= 0 {
		return 1
	}
	var sum float64
	for i := range k + 1 {
		g, _ := math.Lgamma(float64(i + 1))
		sum += math.Exp(float64(i)*math.Log(mean) - mean - g)
	}
	return sum
}
