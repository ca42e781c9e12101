package detect

import "github.com/quell-dev/quell/internal/core/stat"

// Sigmas returns the Params.Sigmas at which the given share of calm samples is over the
// threshold: 0.04 for the paper's 2. It assumes that costs have the shape of the paper's
// figure 7, a generalised extreme value distribution, with any mean and σ; other shapes
// have another share.
func Sigmas(share float64) float64 {
	figure7 := stat.GEV{Location: 1.73, Scale: 0.133, Shape: -0.0534}
	return (figure7.Quantile(1-share) - figure7.Mean()) / figure7.StdDev()
}
