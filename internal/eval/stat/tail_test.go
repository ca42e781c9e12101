package stat

import (
	"math"
	"testing"
)

// TestSigmasOfAShare: the paper says that 4.0 % of figure 7's fit is above mean + 2σ; and
// the share of samples above the threshold of a given share is that share.
func TestSigmasOfAShare(t *testing.T) {
	if k := SigmasOver(0.040); math.Abs(k-2) > 0.05 {
		t.Errorf("4.0 %% are above %.3f σ, the paper has 2", k)
	}
	// The distribution again, by its definition (Coles, 3.1).
	above := func(sigmas float64) float64 {
		const location, scale, shape = 1.73, 0.133, -0.0534
		g1, g2 := math.Gamma(1-shape), math.Gamma(1-2*shape)
		mean, sd := location+scale*(g1-1)/shape, scale*math.Sqrt(g2-g1*g1)/-shape
		z := (mean + sigmas*sd - location) / scale
		return 1 - math.Exp(-math.Pow(1+shape*z, -1/shape))
	}
	for _, share := range []float64{0.2, 0.04, 0.01, 0.001} {
		if got := above(SigmasOver(share)); math.Abs(got-share) > share*1e-6 {
			t.Errorf("%v of calm samples are asked for, %v are above", share, got)
		}
	}
}
