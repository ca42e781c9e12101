package spec

import (
	"math"

	"github.com/quell-dev/quell/internal/core/stat"
)

// Threshold is how the threshold of a spec is found.
type Threshold string

// The ways. With the last two a job's own distribution decides how many standard deviations the
// threshold is above the mean, so that the share of samples above it does not depend on the
// shape of its tail (CPI², figure 7).
const (
	BySigmas   Threshold = "sigmas"   // the paper's: mean + 2 standard deviations
	ByQuantile Threshold = "quantile" // the samples' own quantile
	ByGEV      Threshold = "gev"      // that of a generalised extreme value distribution, fitted to them
)

// figure7Above is the share of the samples above mean + 2σ of the paper's fit, to one digit
// (figure 7; its text says about 5 %).
const figure7Above = 0.04

const (
	// Samples: least number that must be above a threshold to set it.
	minAbove = 10
	// Standard deviations: least distance of a threshold from the mean.
	leastSigmas = 1
	// Widths of a sketch's bins: least standard deviation that the sketch can resolve.
	minSpreadBins = 2
)

// sigmas is how many standard deviations the threshold is above the mean; 0 if the samples do
// not say it. The number is that of the distribution of all samples, also of machines that are left out
// (robust.go). It applies to the bounded mean and deviation, and is itself bounded: no more than a share of
// 1/(1+k²) of any samples is k deviations above their mean (Cantelli's inequality).
func (p Params) sigmas(sketch *stat.Sketch, samples int64) float64 {
	if p.Threshold != ByQuantile && p.Threshold != ByGEV || !(p.Above > 0) || float64(samples)*p.Above < minAbove {
		return 0
	}
	mean, sd := sketch.MeanStdDev()
	if !(sd >= minSpreadBins*2*stat.SketchAccuracy*mean) {
		return 0
	}
	limit := sketch.Quantile(1 - p.Above)
	if p.Threshold == ByGEV {
		g, ok := sketch.FitGEV()
		if !ok {
			return 0
		}
		limit = g.Quantile(1 - p.Above)
	}
	most := math.Sqrt(1/p.Above - 1)
	if k := (limit - mean) / sd; !math.IsNaN(k) {
		return min(max(k, leastSigmas), most)
	}
	return 0
}
