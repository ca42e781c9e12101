package detect

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Conditions of the switch Evidence for a proof by trial. Chosen on the tuning half of the
// simulator's scenarios; docs/design/0005 gives the reason for each.
const (
	// enters is the z at which a suspect enters the model. A proof requires a z of untried
	// less one for each hold, but at least tried.
	enters, tried, untried = 3, 4, 5.5
	// changes is the least number of changes of a suspect's usage between its levels: a
	// single change may coincide with the victim's by chance. A suspect that was never
	// limited requires unheld changes, since of many suspects some change three times
	// together with the victim by chance.
	changes, unheld = 3, 5
	// partOf is the least part of the victim's excess in its newest bad intervals that a
	// suspect must explain.
	partOf = 0.2
	// rises is the least ratio of a suspect's usage in the victim's bad intervals to that
	// in its good ones.
	rises = 1.25
	// matters is the least excess that the model must explain, in σ of the victim's spec.
	matters = 2.3
	// alike is the part of the best suspect's fit from which on another suspect cannot be
	// told apart from it.
	alike = 0.93
	// beside is the least z of a suspect in a model that also has a change of the victim's
	// own level, at the moment that explains most: a suspect that began by chance when the
	// victim's cost rose explains no more than that change does.
	beside = 4.5
	// model is the maximum number of suspects in a model, fewest the minimum number of
	// intervals for it.
	model, fewest = 4, 12
)

// proof is a suspect in the model of a victim's cost.
type proof struct {
	slot    int
	z       float64 // coefficient ÷ standard error
	part    float64 // explained part of the excess in the newest bad intervals
	changes int     // of the level of its usage
	sigmas  float64 // of the victim's spec that the model explains of the newest excess
	held    int     // number of times that quell limited it in the rows
	denied  bool    // limiting it did not help
	rival   bool    // another suspect fits about as well
	beside  float64 // z together with the others and a change of the victim's own level
}

// proven reports whether the proof is sufficient to accuse.
func (p *proof) proven() bool {
	bar, turns := max(tried, untried-float64(p.held)), changes
	if p.held == 0 {
		turns = unheld
	}
	chance := p.beside < beside || p.changes < turns
	return p.z >= bar && p.sigmas >= matters && p.part >= partOf && !p.rival && !p.denied && !chance
}

// bench is the workspace of the regression.
type bench struct {
	rows           []*row
	y, e           []float64
	bad            []bool
	slots          []int
	column         []float64 // n values for each slot: residual of its usage after the basis
	basis          [][]float64
	step, u        []float64 // a change of the victim's own level; temporary column
	usage          []float64 // n values for each slot, centred
	proofs         []proof
	victim         int
	spread, sigmas float64 // of the victim's spec
	mean           float64 // of the weights, subtracted from y
	// newest is the length of the span before upTo, the end of the newest bad interval,
	// whose bad intervals are to be explained: the window that makes an anomaly.
	newest time.Duration
	upTo   sample.Millis
}

// weigh explains the victim's cost over all intervals that are kept by its suspects' usage:
// non-negative forward regression, which adds in each step the suspect that explains most
// of the residual. Then each is tested again together with all the others. Limited suspects
// take part, since the effect of a limit on their usage is the strongest evidence. The
// result is ordered by the part of the newest excess that each explains.
func (d *Detector) weigh(s *series, victim int) []proof {
	t := &d.bench
	t.proofs = t.proofs[:0]
	if !t.load(d, s, victim) {
		return nil
	}
	t.basis = t.basis[:0]
	for len(t.proofs) < model {
		copy(t.column, t.usage)
		p, ok := t.next(-1)
		if !ok || p.z < enters {
			break
		}
		t.proofs = append(t.proofs, p)
		t.basis = append(t.basis, t.along(p.slot))
	}
	t.ownChange()
	for i := range t.proofs {
		t.others(i)
		if p, ok := t.next(t.proofs[i].slot); ok {
			t.proofs[i] = p
		} else {
			t.proofs[i].z = 0
		}
		t.others(i, t.step)
		t.proofs[i].beside = t.alone(t.proofs[i].slot)
	}
	t.share()
	slices.SortFunc(t.proofs, func(a, b proof) int {
		return cmp.Or(cmp.Compare(b.part, a.part), compareKeys(s.tasks[a.slot].task.Key, s.tasks[b.slot].task.Key))
	})
	return t.proofs
}

// others makes the basis of the given columns, of length 1, and of all suspects of the
// model except one.
func (t *bench) others(but int, given ...[]float64) {
	t.basis = append(t.basis[:0], given...)
	for k := range t.proofs {
		if k != but {
			t.basis = append(t.basis, t.along(t.proofs[k].slot))
		}
	}
}

// ownChange finds the moment at which a single change of the victim's own level explains
// its cost best (least squares), and keeps that change as a column of length 1 and mean 0.
func (t *bench) ownChange() {
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

// along returns a suspect's usage, less what the basis explains of it, scaled to length 1.
func (t *bench) along(slot int) []float64 {
	q := slices.Clone(t.of(slot))
	for _, b := range t.basis {
		take(q, b)
	}
	if norm := math.Sqrt(dot(q, q)); norm > 0 {
		for i := range q {
			q[i] /= norm
		}
	}
	return q
}

// take subtracts from x its projection on q, and returns the length of that.
func take(x, q []float64) float64 {
	along := dot(x, q)
	for i := range x {
		x[i] -= along * q[i]
	}
	return along
}

// next finds the suspect that explains most of the residual of the victim's cost after the
// basis, or tests the given one; −1 for none.
func (t *bench) next(given int) (proof, bool) {
	n := len(t.rows)
	e := append(t.e[:0], t.y...)
	t.e = e
	for _, b := range t.basis {
		take(e, b)
	}
	copy(t.column, t.usage)
	best, most, second := -1, 0.0, 0.0
	for k, slot := range t.slots {
		u := t.column[k*n : (k+1)*n]
		whole := dot(u, u)
		for _, b := range t.basis {
			take(u, b)
		}
		left := dot(u, u)
		if left <= whole*1e-6 {
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
		return proof{}, false
	}
	held := t.holds(t.slots[best])
	p := proof{slot: t.slots[best], changes: turns(t.usage[best*n:(best+1)*n]) + 2*held, held: held, rival: second*second >= alike*most*most}
	p.z = t.significance(e, t.column[best*n:(best+1)*n], most)
	return p, true
}

// alone returns the z of a suspect in addition to the basis, 0 if it is not positive.
func (t *bench) alone(slot int) float64 {
	t.e = append(t.e[:0], t.y...)
	t.u = append(t.u[:0], t.of(slot)...)
	whole := dot(t.u, t.u)
	for _, b := range t.basis {
		take(t.e, b)
		take(t.u, b)
	}
	left := dot(t.u, t.u)
	if left <= whole*1e-6 {
		return 0
	}
	fit := dot(t.u, t.e) / math.Sqrt(left)
	if fit <= 0 {
		return 0
	}
	return t.significance(t.e, t.u, fit)
}

// significance returns a fit in standard errors, for the residuals after the basis of the
// victim's cost, e, and of a suspect's usage, u. Both are changed: e becomes the new
// residual, u gets length 1. The error is increased for the autocorrelation of both
// (Bartlett's formula for series of order 1).
func (t *bench) significance(e, u []float64, fit float64) float64 {
	norm := math.Sqrt(dot(u, u))
	for i := range u {
		u[i] /= norm
	}
	take(e, u)
	spread := math.Sqrt(max(dot(e, e), 1e-12) / float64(len(e)-len(t.basis)-2))
	f := max(0, lag(e)) * max(0, lag(u))
	return fit / (spread * math.Sqrt((1+f)/(1-f)))
}

// load collects the victim's intervals and its suspects' columns. It returns false if there
// are too few for a result.
func (t *bench) load(d *Detector, s *series, victim int) bool {
	t.rows, t.y, t.bad, t.slots = t.rows[:0], t.y[:0], t.bad[:0], t.slots[:0]
	ngood, nbad := 0, 0
	limit := s.tasks[victim].limit
	t.victim, t.spread, t.newest = victim, s.tasks[victim].spec.StdDev, d.params.OutlierWindow
	for _, r := range s.rows {
		bad := r.cause[victim] == byNeighbour
		switch r.cause[victim] {
		case good, byNeighbour:
		case early: // judged by the current spec
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
	if n < fewest || ngood < d.params.Outliers || nbad < d.params.Outliers {
		return false
	}
	t.mean = centre(t.y)
	t.column = t.column[:0]
	for i := range s.tasks {
		k := &s.tasks[i]
		if i == victim || !k.used || d.unable(s, victim, i) != "" {
			continue
		}
		t.slots = append(t.slots, i)
		usual := t.usual(i)
		var good, bad, most float64
		for r, row := range t.rows {
			u := float64(row.pressure[i])
			// A suspect that is a victim too uses more CPU for the same work: its work
			// counts, not its usage.
			if s.signal.PerWork && row.cause[i].judged() && usual > 0 {
				u /= max(1, float64(row.cost[i])/usual)
			}
			t.column = append(t.column, u)
			if t.bad[r] {
				bad, most = bad+u, max(most, u)
			} else {
				good += u
			}
		}
		// Its increase is too small, or its usage is always too small to accuse it.
		if bad/float64(nbad) < rises*good/float64(ngood) || most < d.leastPressure(s) {
			t.slots = t.slots[:len(t.slots)-1]
			t.column = t.column[:len(t.column)-n]
			continue
		}
		centre(t.column[len(t.column)-n:])
	}
	t.usage = append(t.usage[:0], t.column...)
	return true
}

// usual returns a suspect's own mean cost in the victim's good intervals; 0 if that is not
// known.
func (t *bench) usual(slot int) float64 {
	var sum float64
	n := 0
	for i, r := range t.rows {
		if !t.bad[i] && r.cause[slot].judged() {
			sum, n = sum+float64(r.cost[slot]), n+1
		}
	}
	return sum / float64(max(n, 1))
}

// share computes the part that each suspect of the model explains of the excess of the
// newest bad intervals over the good ones' mean.
func (t *bench) share() {
	p := len(t.proofs)
	t.basis = t.basis[:0]
	for i := range t.proofs {
		t.basis = append(t.basis, t.along(t.proofs[i].slot))
	}
	// Back substitution gives the coefficients: usage = Σ r·q.
	var beta [model]float64
	for a := p - 1; a >= 0; a-- {
		beta[a] = dot(t.basis[a], t.y)
		for b := a + 1; b < p; b++ {
			beta[a] -= beta[b] * dot(t.basis[a], t.of(t.proofs[b].slot))
		}
		beta[a] /= dot(t.basis[a], t.of(t.proofs[a].slot))
	}
	excess := t.level(t.y)
	t.sigmas = t.more(func(r *row) float64 { return float64(r.cost[t.victim]) }) / max(t.spread, 1e-12)
	for a := range t.proofs {
		if excess > 0 && beta[a] > 0 {
			t.proofs[a].part = beta[a] * t.level(t.of(t.proofs[a].slot)) / excess
		}
	}
	for a := range t.proofs {
		t.proofs[a].denied = t.proofs[a].held > 0 && t.denies(a, beta[:p])
	}
	var all float64
	for i := range t.proofs {
		all += max(0, t.proofs[i].part)
	}
	for i := range t.proofs {
		t.proofs[i].sigmas = min(1, all) * t.sigmas
	}
}

// denies reports whether limiting a suspect reduced the victim's cost by less than half of
// the model's prediction. It compares the victim's cost under the hold with that in bad
// intervals before and after, less what the others of the model explain. The first interval
// of each hold is left out, since it is only partly under the hold. The model is of
// weights, which hardly decrease while a cost of many times the threshold is still above
// it, so two thirds of the predicted reduction in cost suffice as well.
func (t *bench) denies(a int, beta []float64) bool {
	var y, u, n [2]float64 // bad without hold; under the hold
	own := t.of(t.proofs[a].slot)
	for i, r := range t.rows {
		side := 0
		switch is := r.cause[t.proofs[a].slot] == held; {
		case is && (i == 0 || t.rows[i-1].cause[t.proofs[a].slot] != held):
			continue
		case is:
			side = 1
		case !t.bad[i]:
			continue
		}
		rest := t.y[i]
		for b := range beta {
			if b != a {
				rest -= beta[b] * t.of(t.proofs[b].slot)[i]
			}
		}
		y[side], u[side], n[side] = y[side]+rest, u[side]+own[i], n[side]+1
	}
	if n[0] == 0 || n[1] == 0 {
		return false
	}
	bad, under := t.mean+y[0]/n[0], t.mean+y[1]/n[1]
	promised := beta[a] * (u[0]/n[0] - u[1]/n[1])
	return bad-under < promised/2 && unweigh(bad)-unweigh(under) < (unweigh(bad)-unweigh(bad-promised))*2/3
}

// unweigh is the inverse of weight: a cost, in thresholds. After subtraction of the others'
// parts the result may be outside the range of a weight.
func unweigh(w float64) float64 {
	if w > 0 {
		return 1 / (1 - min(w, 0.99))
	}
	return max(0, 1+w)
}

// level returns the difference of x between the newest bad intervals and the good ones, on
// average.
func (t *bench) level(x []float64) float64 {
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

// more returns the difference of a quantity between the newest bad intervals and the good
// ones, on average.
func (t *bench) more(of func(*row) float64) float64 {
	t.u = t.u[:0]
	for _, r := range t.rows {
		t.u = append(t.u, of(r))
	}
	return t.level(t.u)
}

func (t *bench) of(slot int) []float64 {
	n := len(t.rows)
	k := slices.Index(t.slots, slot)
	return t.usage[k*n : (k+1)*n]
}

// turns counts how often a centred usage crossed the middle between its levels and stayed
// on the other side for two intervals.
func turns(u []float64) int {
	lo, hi := slices.Min(u), slices.Max(u)
	middle := (lo + hi) / 2
	count, side := 0, u[0] > middle
	for i := 1; i < len(u); i++ {
		if now := u[i] > middle; now != side && (i+1 == len(u) || (u[i+1] > middle) == now) {
			side = now
			count++
		}
	}
	return count
}

// holds counts how often quell limited a task in the rows. quell determined the begin and
// end of each hold, so they are no coincidence.
func (t *bench) holds(slot int) (count int) {
	was := false
	for _, r := range t.rows {
		is := r.cause[slot] == held
		if is && !was {
			count++
		}
		was = is
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

// lag is the autocorrelation at one interval of values with mean 0.
func lag(x []float64) float64 {
	v := dot(x, x)
	if v <= 0 {
		return 0
	}
	return dot(x[1:], x[:len(x)-1]) / v
}
