package plan

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// point is the victim's cost at some usage of the suspect.
type point struct{ usage, cost float64 }

// curve is what is known of how a victim's cost depends on a suspect's usage: the
// intervals that accused the suspect and those under its cap, and a family of shapes,
//
//	cost = calm + b·xᵖ
//
// where x is 0 at the usage of the good intervals and 1 at that of the bad ones. A cache
// that is full at low usage has p below 1, shared execution units have 1, queues have
// more (for c servers about √(2(c+1)) − 1; Sakasegawa, Ann. Inst. Stat. Math. 29, 1977). The
// numbers of shapesOf are docs/design/0006, points 1 and 2.
// The shape is not configured: the suspect's own variation selects it, and then the cap.
type curve struct {
	calm   point   // the good intervals' mean
	top    float64 // usage in the bad intervals
	limit  float64 // the victim's threshold
	noise  float64 // error of a sample in a good interval
	shapes shapes
	// before are the intervals that accused the suspect, under those under the cap; the
	// newest maxBefore and maxUnder of them.
	before, under []point
}

// Memory of a curve: unit, meaning. How the numbers were chosen is not stated.
const (
	// Intervals that accused the suspect.
	maxBefore = 64
	// Intervals under the cap.
	maxUnder = 32
)

// shapes are the p that are tried, each √2 times the one before.
type shapes struct {
	least   float64 // the smallest p
	first   int     // number of them while no interval under the cap is known
	n       int     // number of them
	caution float64 // standard deviations of the shapes' results by which the rate is below their mean
}

// shapesOf returns the shapes of a signal. A wait for CPUs is a queue. A cost per unit of
// work may be a queue too, or shared units, or a cache, where too high a rate costs most.
// Until that is known, the choice favours the victim.
func shapesOf(name sample.SignalName) shapes {
	if sig, _ := sample.LookupSignal(name); sig.Domain == sample.SharedCPU {
		return shapes{least: 1, first: 7, n: 7, caution: 0} // p from 1 to 8
	}
	return shapes{least: 0.5, first: 5, n: 9, caution: 1} // p from ½ to 2, later to 8
}

// add adds an interval under the cap.
func (c *curve) add(p point) {
	if len(c.under) == maxUnder {
		c.under = c.under[:copy(c.under, c.under[1:])]
	}
	c.under = append(c.under, p)
}

// fit is b of the shape by least squares, and the remaining misfit, in squares of the
// samples' error: above the threshold that error grows with the cost.
func (c *curve) fit(p float64) (b, misfit float64) {
	var xx, xy, yy float64
	for _, all := range [...][]point{c.before, c.under} {
		for _, at := range all {
			off := c.noise * max(1, at.cost/c.limit)
			x := math.Pow(max(0, (at.usage-c.calm.usage)/(c.top-c.calm.usage)), p) / off
			y := (at.cost - c.calm.cost) / off
			xx, xy, yy = xx+x*x, xy+x*y, yy+y*y
		}
	}
	if !(xx > 0) {
		return 0, yy
	}
	b = xy / xx
	return b, yy - b*xy
}

// rate is the usage, at least floor, at which the victim is expected to have the given
// cost, above its calm one: the mean, on a logarithmic scale, of the shapes' results,
// each weighted by its likelihood given the samples, less the caution.
func (c *curve) rate(cost, floor float64) float64 {
	n := c.shapes.n
	if len(c.under) == 0 {
		n = c.shapes.first
	}
	logs, misfits := make([]float64, n), make([]float64, n)
	for k := range logs {
		p := c.shapes.least * math.Pow(2, float64(k)/2)
		b, misfit := c.fit(p)
		x := float64(maxStepRatio) // if the cost hardly rises
		if b > 0 {
			x = min(x, math.Pow((cost-c.calm.cost)/b, 1/p))
		}
		logs[k], misfits[k] = math.Log(max(floor, c.calm.usage+x*(c.top-c.calm.usage))), misfit
	}
	var said stat.Moments
	best := slices.Min(misfits)
	for k := range logs {
		said.Add(logs[k], math.Exp((best-misfits[k])/2))
	}
	return max(floor, math.Exp(said.Mean-c.shapes.caution*math.Sqrt(said.M2/said.W)))
}
