package detect

import (
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Constants of the proof by trial (switch Evidence): unit, meaning, and how each was chosen. "Tuning"
// is the tuning half of the simulator's scenarios; the points are of docs/design/0005.
const (
	// Standard errors: least z at which a suspect enters the model. Tuning, point 3.
	minEntryZ = 3
	// Standard errors: least z of a proof, less one for each limit. Tuning, point 4; 6.5 before.
	minUntriedZ = 5.5
	// Standard errors: least z of a proof after any number of limits. Tuning, point 4; 4.5 before.
	minTriedZ = 4
	// Standard errors: least z of a suspect in a model that also has a change of the
	// victim's own level, at the moment that explains most. A suspect that began by chance
	// when the victim's cost rose explains no more than that change does. Tuning, point 4.
	minZWithStep = 4.5
	// Count: least changes of a suspect's usage between its levels; a limit counts as two. A
	// single change may coincide with the victim's by chance. Point 4.
	minLevelChanges = 3
	// Share of the victim's excess in its newest bad intervals: least part that a suspect
	// explains. Point 4.
	minExplainedShare = 0.2
	// Ratio: least usage in the victim's bad intervals to that in its good ones. Point 4.
	minUsageRatio = 1.25
	// σ of the victim's spec: least excess that the model explains. Totals of just 2σ were
	// wrong accusations on everyday machines; point 4.
	minExplainedSigmas = 2.3
	// Ratio of fits (squared): from here on another suspect cannot be told apart from the
	// best one. 0.85 and 0.93 were measured; table of design 0005.
	rivalFitRatio = 0.93
	// Suspects: size of the model. Point 3.
	maxModelSize = 4
	// Intervals: least data of the model and of the statistics. Not stated.
	minIntervals = 12
	// Share of the predicted reduction: a limit that reduced the victim's weight by less
	// did not help. Point 5.
	minReduction = 0.5
	// The same, of its cost, which suffices as well: a weight hardly decreases while a cost
	// of many times the threshold is still above it. Point 5.
	minCostReduction = 2.0 / 3
	// Share of a usage's sum of squares: a usage of which less is left after the basis is
	// collinear with it. Numerical.
	collinear = 1e-6
	// Weight: bound before a weight is converted to a cost, which is infinite at 1. Numerical.
	maxWeight = 0.99
)

// fit is a suspect in the model of a victim's cost.
type fit struct {
	slot         int
	z            float64 // coefficient ÷ standard error
	part         float64 // explained part of the excess in the newest bad intervals
	changes      int     // of the level of its usage
	sigmas       float64 // of the victim's spec that the model explains of the newest excess
	limits       int     // number of times that quell limited it in the rows (limitCount)
	contradicted bool    // limiting it did not help
	ambiguous    bool    // another suspect fits about as well
	zWithStep    float64 // z together with the others and a change of the victim's own level
}

// proves reports whether the trials of the suspect are sufficient to accuse it.
func (p *fit) proves() bool {
	bar := max(minTriedZ, minUntriedZ-float64(p.limits))
	chance := p.zWithStep < minZWithStep || p.changes < minLevelChanges
	return p.z >= bar && p.sigmas >= minExplainedSigmas && p.part >= minExplainedShare && !p.ambiguous && !p.contradicted && !chance
}

// regression is the workspace of the regression.
type regression struct {
	rows           []*row
	y, e           []float64
	bad            []bool
	slots          []int
	column         []float64 // n values for each slot: residual of its usage after the basis
	basis          [][]float64
	directions     [][]float64 // storage of the basis' columns
	step, u        []float64   // a change of the victim's own level; temporary column
	usage          []float64   // n values for each slot, centred
	fits           []fit
	victim         int
	spread, sigmas float64 // of the victim's spec
	mean           float64 // of the weights, subtracted from y
	groups         bool    // Params.Groups
	// newest is the length of the span before upTo, the end of the newest bad interval,
	// whose bad intervals are to be explained: the window that makes an anomaly.
	newest time.Duration
	upTo   sample.Millis
}

// regress explains the victim's cost over all intervals that are kept by its suspects' usage:
// non-negative forward regression, which adds in each step the suspect that explains most
// of the residual. Then each is tested again together with all the others. Limited suspects
// take part, since the effect of a limit on their usage is the strongest evidence.
func (d *Detector) regress(s *series, victim int) []fit {
	t := &d.regression
	t.fits = t.fits[:0]
	if !t.load(d, s, victim) {
		return nil
	}
	t.basis = t.basis[:0]
	for len(t.fits) < maxModelSize {
		copy(t.column, t.usage)
		p, ok := t.bestCandidate(-1)
		if !ok || p.z < minEntryZ {
			break
		}
		t.fits = append(t.fits, p)
		t.basis = append(t.basis, t.direction(p.slot))
	}
	t.fitStep()
	for i := range t.fits {
		t.setBasisWithout(i)
		if p, ok := t.bestCandidate(t.fits[i].slot); ok {
			t.fits[i] = p
		} else {
			t.fits[i].z = 0
		}
		t.setBasisWithout(i, t.step)
		t.fits[i].zWithStep = t.zOf(t.fits[i].slot)
	}
	t.computeShares()
	return t.fits
}

// setBasisWithout makes the basis of the given columns, of length 1, and of all suspects of the
// model except one.
func (t *regression) setBasisWithout(but int, given ...[]float64) {
	t.basis = append(t.basis[:0], given...)
	for k := range t.fits {
		if k != but {
			t.basis = append(t.basis, t.direction(t.fits[k].slot))
		}
	}
}

// fitStep finds the moment at which a single change of the victim's own level explains
// its cost best (least squares), and keeps that change as a column of length 1 and mean 0.
func (t *regression) fitStep() {
	n := len(t.y)
	best, at, sum := 0.0, 1, 0.0
	for k := 1; k < n; k++ {
		sum += t.y[k-1] // the sum of the other side is its negative
		if gain := sum * sum / (float64(k) * float64(n-k)); gain > best {
			best, at = gain, k
		}
	}
	t.step = zeroed(t.step, n)
	below, above := -math.Sqrt(float64(n-at)/float64(at*n)), math.Sqrt(float64(at)/float64((n-at)*n))
	for i := range t.step {
		if t.step[i] = above; i < at {
			t.step[i] = below
		}
	}
}

// direction returns a suspect's usage, less what the basis explains of it, scaled to length 1,
// as the basis' next column. Its place is reused when the basis is made anew.
func (t *regression) direction(slot int) []float64 {
	k := len(t.basis)
	for k >= len(t.directions) {
		t.directions = append(t.directions, nil)
	}
	q := append(t.directions[k][:0], t.usageOf(slot)...)
	t.directions[k] = q
	for _, b := range t.basis {
		project(q, b)
	}
	if norm := math.Sqrt(dot(q, q)); norm > 0 {
		for i := range q {
			q[i] /= norm
		}
	}
	return q
}

// project subtracts from x its projection on q, and returns the length of that.
func project(x, q []float64) float64 {
	along := dot(x, q)
	for i := range x {
		x[i] -= along * q[i]
	}
	return along
}

// bestCandidate finds the suspect that explains most of the residual of the victim's cost after the
// basis, or tests the given one; −1 for none.
func (t *regression) bestCandidate(given int) (fit, bool) {
	n := len(t.rows)
	e := append(t.e[:0], t.y...)
	t.e = e
	for _, b := range t.basis {
		project(e, b)
	}
	copy(t.column, t.usage)
	best, most, second := -1, 0.0, 0.0
	for k, slot := range t.slots {
		u := t.column[k*n : (k+1)*n]
		whole := dot(u, u)
		for _, b := range t.basis {
			project(u, b)
		}
		left := dot(u, u)
		if left <= whole*collinear {
			continue
		}
		switch g := dot(u, e) / math.Sqrt(left); {
		case slot == given, given < 0 && g > most:
			if given < 0 {
				second = most
			}
			best, most = k, g
		case g > second:
			second = g
		}
	}
	if best < 0 || most <= 0 {
		return fit{}, false
	}
	held := t.limitCount(t.slots[best])
	p := fit{slot: t.slots[best], changes: levelChanges(t.usage[best*n:(best+1)*n]) + 2*held, limits: held, ambiguous: second*second >= rivalFitRatio*most*most}
	p.z = t.significance(e, t.column[best*n:(best+1)*n], most)
	return p, true
}

// zOf returns the z of a suspect in addition to the basis, 0 if it is not positive.
func (t *regression) zOf(slot int) float64 {
	t.e = append(t.e[:0], t.y...)
	t.u = append(t.u[:0], t.usageOf(slot)...)
	whole := dot(t.u, t.u)
	for _, b := range t.basis {
		project(t.e, b)
		project(t.u, b)
	}
	left := dot(t.u, t.u)
	if left <= whole*collinear {
		return 0
	}
	fit := dot(t.u, t.e) / math.Sqrt(left)
	if fit <= 0 {
		return 0
	}
	return t.significance(t.e, t.u, fit)
}

// significance returns a fit in standard errors, for the residuals after the basis of the victim's
// cost, e, and of a suspect's usage, u. Both are changed: e becomes the new residual, u gets length 1.
// The error is increased for the autocorrelation of both (Bartlett's formula for series of order 1).
func (t *regression) significance(e, u []float64, fit float64) float64 {
	norm := math.Sqrt(dot(u, u))
	for i := range u {
		u[i] /= norm
	}
	project(e, u)
	spread := math.Sqrt(max(dot(e, e), 1e-12) / float64(len(e)-len(t.basis)-2))
	f := max(0, autocorrelation(e)) * max(0, autocorrelation(u))
	return fit / (spread * math.Sqrt((1+f)/(1-f)))
}

// load collects the victim's intervals and its suspects' columns. It returns false if there
// are too few for a result.
func (t *regression) load(d *Detector, s *series, victim int) bool {
	t.rows, t.y, t.bad, t.slots = t.rows[:0], t.y[:0], t.bad[:0], t.slots[:0]
	ngood, nbad := 0, 0
	limit := s.tasks[victim].limit
	t.victim, t.spread, t.newest, t.groups = victim, s.tasks[victim].spec.StdDev, d.params.OutlierWindow, d.params.Groups
	for _, r := range s.rows {
		bad := r.cause[victim] == byNeighbour
		switch r.cause[victim] {
		case good, byNeighbour:
		case noSpec: // judged by the current spec
			bad = float64(r.cost[victim]) > limit
		default:
			continue
		}
		if bad {
			nbad, t.upTo = nbad+1, r.at
		} else {
			ngood++
		}
		t.rows = append(t.rows, r)
		t.y = append(t.y, weight(float64(r.cost[victim]), limit))
		t.bad = append(t.bad, bad)
	}
	n := len(t.rows)
	if n < minIntervals || ngood < d.params.Outliers || nbad < d.params.Outliers {
		return false
	}
	t.mean = centre(t.y)
	t.column = t.column[:0]
	for i := range s.tasks {
		k := &s.tasks[i]
		if i == victim || !k.used || d.excluded[i] != "" {
			continue
		}
		t.slots = append(t.slots, i)
		usual := t.usual(i)
		var good, bad, most float64
		for r, row := range t.rows {
			u := float64(row.usage(i))
			// A suspect that is a victim too uses more CPU for the same work: its work
			// counts, not its usage.
			if s.signal.PerWork && row.causeOf(i).judged() && usual > 0 {
				of := max(1, float64(row.cost[i])/usual)
				if s.signal.SelfReported {
					of = min(of, maxReportedRatio)
				}
				u /= of
			}
			t.column = append(t.column, u)
			if t.bad[r] {
				bad, most = bad+u, max(most, u)
			} else {
				good += u
			}
		}
		// Its increase is too small, or its usage is always too small to accuse it.
		if bad/float64(nbad) < minUsageRatio*good/float64(ngood) || most < d.leastPressure(s) {
			t.slots = t.slots[:len(t.slots)-1]
			t.column = t.column[:len(t.column)-n]
			continue
		}
		centre(t.column[len(t.column)-n:])
	}
	t.usage = append(t.usage[:0], t.column...)
	return true
}

// usual returns a suspect's own mean cost in the victim's good intervals; 0 if that is not known.
func (t *regression) usual(slot int) float64 {
	var sum float64
	n := 0
	for i, r := range t.rows {
		if !t.bad[i] && r.causeOf(slot).judged() {
			sum, n = sum+float64(r.cost[slot]), n+1
		}
	}
	return sum / float64(max(n, 1))
}

// computeShares computes the part that each suspect of the model explains of the excess of the
// newest bad intervals over the good ones' mean.
func (t *regression) computeShares() {
	p := len(t.fits)
	t.basis = t.basis[:0]
	for i := range t.fits {
		t.basis = append(t.basis, t.direction(t.fits[i].slot))
	}
	// Back substitution gives the coefficients: usage = Σ r·q.
	var beta [maxModelSize]float64
	for a := p - 1; a >= 0; a-- {
		beta[a] = dot(t.basis[a], t.y)
		for b := a + 1; b < p; b++ {
			beta[a] -= beta[b] * dot(t.basis[a], t.usageOf(t.fits[b].slot))
		}
		beta[a] /= dot(t.basis[a], t.usageOf(t.fits[a].slot))
	}
	excess := t.meanExcess(t.y)
	t.u = t.u[:0]
	for _, r := range t.rows {
		t.u = append(t.u, float64(r.cost[t.victim]))
	}
	t.sigmas = t.meanExcess(t.u) / max(t.spread, 1e-12)
	for a := range t.fits {
		if excess > 0 && beta[a] > 0 {
			t.fits[a].part = beta[a] * t.meanExcess(t.usageOf(t.fits[a].slot)) / excess
		}
	}
	for a := range t.fits {
		t.fits[a].contradicted = t.fits[a].limits > 0 && t.contradicts(a, beta[:p])
	}
	var all float64
	for i := range t.fits {
		all += max(0, t.fits[i].part)
	}
	for i := range t.fits {
		t.fits[i].sigmas = min(1, all) * t.sigmas
	}
}

// contradicts reports whether limiting a suspect reduced the victim's cost by less than half of
// the model's prediction. It compares the victim's cost under the hold with that in bad
// intervals before and after, less what the others of the model explain. The first interval
// of each hold is left out, since it is only partly under the hold. The model is of
// weights, which hardly decrease while a cost of many times the threshold is still above
// it, so two thirds of the predicted reduction in cost suffice as well.
func (t *regression) contradicts(a int, beta []float64) bool {
	var y, u, n [2]float64 // bad without hold; under the hold
	own := t.usageOf(t.fits[a].slot)
	for i, r := range t.rows {
		side := 0
		switch is := r.causeOf(t.fits[a].slot) == limited; {
		case is && (i == 0 || t.rows[i-1].causeOf(t.fits[a].slot) != limited):
			continue
		case is:
			side = 1
		case !t.bad[i]:
			continue
		}
		rest := t.y[i]
		for b := range beta {
			if b != a {
				rest -= beta[b] * t.usageOf(t.fits[b].slot)[i]
			}
		}
		y[side], u[side], n[side] = y[side]+rest, u[side]+own[i], n[side]+1
	}
	if n[0] == 0 || n[1] == 0 {
		return false
	}
	bad, under := t.mean+y[0]/n[0], t.mean+y[1]/n[1]
	promised := beta[a] * (u[0]/n[0] - u[1]/n[1])
	return bad-under < promised*minReduction && costOfWeight(bad)-costOfWeight(under) < (costOfWeight(bad)-costOfWeight(bad-promised))*minCostReduction
}

// costOfWeight is the inverse of weight: a cost, in thresholds. After subtraction of the others'
// parts the result may be outside the range of a weight.
func costOfWeight(w float64) float64 {
	if w > 0 {
		return 1 / (1 - min(w, maxWeight))
	}
	return max(0, 1+w)
}

// meanExcess returns the difference of x between the newest bad intervals and the good ones, on
// average.
func (t *regression) meanExcess(x []float64) float64 {
	var bad, good, nb, ng float64
	for i, v := range x {
		switch {
		case !t.bad[i]:
			good, ng = good+v, ng+1
		case t.upTo.Sub(t.rows[i].at) < t.newest:
			bad, nb = bad+v, nb+1
		}
	}
	return bad/max(nb, 1) - good/max(ng, 1)
}

func (t *regression) usageOf(slot int) []float64 {
	n := len(t.rows)
	k := slices.Index(t.slots, slot)
	return t.usage[k*n : (k+1)*n]
}

// levelChanges counts how often a usage crossed the middle between its levels and stayed on the
// other side for two intervals, or crossed it in the last one. It has no branches that depend
// on the usage, which a CPU could not predict.
func levelChanges(u []float64) int {
	lo, hi := u[0], u[0]
	for _, x := range u {
		if x < lo {
			lo = x
		}
		if x > hi {
			hi = x
		}
	}
	middle := (lo + hi) / 2
	above := func(x float64) uint64 { return math.Float64bits(middle-x) >> 63 } // 1 or 0
	now := above(u[0])
	side, count := now, uint64(0)
	for _, x := range u[1:] {
		next := above(x)
		change := (now ^ side) &^ (now ^ next)
		side ^= change
		count += change
		now = next
	}
	return int(count + (now ^ side))
}

// limitCount counts how often quell limited a task in the rows. quell determined the begin and
// end of each hold, so they are no coincidence. A hold that began with another task's does not
// count: it was a hold of a group.
func (t *regression) limitCount(slot int) (count int) {
	for i := range t.rows {
		if limitBegins(t.rows, i, slot) && !(t.groups && othersBegin(t.rows, i, slot)) {
			count++
		}
	}
	return count
}

func dot(a, b []float64) (sum float64) {
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}

// centre subtracts the mean, and returns it.
func centre(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	sum /= float64(len(x))
	for i := range x {
		x[i] -= sum
	}
	return sum
}

// autocorrelation is the autocorrelation at one interval of values with mean 0.
func autocorrelation(x []float64) float64 {
	v := dot(x, x)
	if v <= 0 {
		return 0
	}
	return dot(x[1:], x[:len(x)-1]) / v
}
