package stat

import (
	"gonum.org/v1/gonum/stat/distuv"
)

// ShareLowerBound is the lower end of the exact one-sided confidence interval of a share
// (Clopper and Pearson, Biometrika 26, 1934): the least share at which k or more
// successes of n have at least the probability 1 − confidence. It is 0 if k or n is 0.
func ShareLowerBound(k, n int, confidence float64) float64 {
	if k <= 0 || n <= 0 {
		return 0
	}
	return distuv.Beta{Alpha: float64(k), Beta: float64(n - k + 1)}.Quantile(1 - confidence)
}

// ShareInterval is the exact two-sided 95 % confidence interval of a share.
func ShareInterval(k, n int) (low, high float64) {
	const side = 0.975
	return ShareLowerBound(k, n, side), 1 - ShareLowerBound(n-k, n, side)
}

// RateUpperBound is the upper end of the exact one-sided confidence interval of a Poisson mean
// when k events were seen (Garwood, Biometrika 28, 1936).
func RateUpperBound(k int, confidence float64) float64 {
	return distuv.Gamma{Alpha: float64(k + 1), Beta: 1}.Quantile(confidence)
}
