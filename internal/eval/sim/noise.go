package sim

import (
	"math"
	"math/rand/v2"

	"github.com/quell-dev/quell/internal/eval/stat"
)

// quantiles is the number of tabulated quantiles: the tails end at the (½/8192)th quantile,
// 3.9 σ above the mean.
const quantiles = 8192

// shape draws from stat.Figure7, a generalised extreme value distribution that is skewed to
// the right, standardised to mean 0 and variance 1.
type shape [quantiles]float32

// newShape tabulates the quantile function at the midpoints of equal probabilities, and
// standardises the table.
func newShape() *shape {
	var s shape
	var sum, sq float64
	q := make([]float64, quantiles)
	for i := range q {
		q[i] = stat.Figure7.Quantile((float64(i) + 0.5) / quantiles)
		sum += q[i]
	}
	mean := sum / quantiles
	for _, x := range q {
		sq += (x - mean) * (x - mean)
	}
	sd := math.Sqrt(sq / quantiles)
	for i, x := range q {
		s[i] = float32((x - mean) / sd)
	}
	return &s
}

func (s *shape) draw(rng *rand.Rand) float64 { return float64(s[rng.Uint32()%quantiles]) }

// Components of a job's variance. CPI² gives their sum (table 1) and a daily wave of about
// 4 % (figure 5). The slow component is fitted: in recordings of nginx on a test bed a
// task's cost has a correlation of 0.07 to 0.11 with its cost a minute before
// (docs/sim.md). The quarter between tasks is assumed.
const (
	shareTask  = 0.25 // between tasks
	shareDrift = 0.08 // slow: autocorrelation driftStay a minute
	shareWhite = 0.67 // from sample to sample, of figure 7's shape
	driftStay  = 0.9
)
