package detect

import (
	"fmt"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/sample"
)

// Weighed is what statistics say of a suspect, from everything that is remembered of
// it and the victim (docs/design/0009).
type Weighed struct {
	slot int
	Task sample.Task
	// Correlation of the logarithm of the victim's cost with the suspect's work, in
	// [−1, 1]. Work is its pressure ÷ what its own cost is above its usual one: a
	// fellow victim uses more for the same work.
	Correlation float64
	// Intervals is how many independent ones that correlation is worth (Bartlett's
	// formula for series of order 1).
	Intervals float64
	// Share is its part of what all did more in the newest bad intervals than in good
	// ones, 0..1.
	Share float64
	// More is the ratio of its work in the newest bad intervals to that in good ones.
	More float64
	// Step is how its own step when the victim's cost went up ranks among its steps,
	// 0..1.
	Step float64
	// Cover is in what part of the bad intervals since the victim was well last it did
	// more than half of what it does more now: who came later did not make it so.
	Cover float64
	// Score is what suspects are ranked by, Lead how much higher it is than the best
	// other suspect's.
	Score, Lead float64
	// Others is how many other suspects there are.
	Others int
	// Bouts is how many times the victim became bad, Bad how many intervals it was.
	Bouts, Bad float64
	// Turns is how often the suspect's work went from one side of the middle between its
	// levels to the other; Arrivals, how many suspects' did so upwards, of all, in as
	// many intervals as an anomaly takes, on average: what chance would bring.
	Turns, Arrivals float64
	// Excess is the logarithm of the victim's mean cost in the newest bad intervals
	// over its threshold.
	Excess float64
	// Mild says that the victim is only mildly worse, for long.
	Mild bool
}

// score ranks suspects: by the correlation, made even in its errors (Fisher), and a
// little by the other two.
func (w *Weighed) score() float64 {
	return fisher(w.Correlation) + 0.1*math.Log(w.Share+0.1) + 0.2*w.Step
}

func fisher(r float64) float64 { return math.Atanh(min(max(r, -0.98), 0.98)) }

// Features is what the probability is made of.
func (w *Weighed) Features() []float64 {
	n := max(w.Intervals, 2)
	r := min(max(w.Correlation, 0), 0.995)
	return []float64{fisher(w.Correlation), math.Sqrt(min(-n/2*math.Log(1-r*r), 60)), w.Lead, math.Log(w.Share + 0.1), w.Step,
		math.Log(n), min(max(w.Excess, 0), 1.5),
		math.Log1p(w.Bouts), math.Log1p(w.Bad), math.Log(w.Arrivals+0.02) / max(w.Bouts, 1), w.Cover}
}

// What the probability is made of the features by, fitted by quality/fit on labelled
// recordings and the simulator's tuning half (docs/design/0009).
var (
	intercept    = -3.293
	coefficients = [...]float64{1.790, 2.526, 1.958, 1.115, 1.479, -0.516, 1.976, 0.474, -0.194, -0.533, 0.849}
)

// The probabilities from which on a suspect is possible, worth a trial, and likely;
// the latter two are higher where the victim is only mildly worse (level), since a
// task's own ups and downs look like that.
const (
	possibleFrom = 0.3
	triedFrom    = 0.5
	triedMild    = 0.8
	likelyFrom   = 0.9
	likelyMild   = 0.97
)

// unlike is how much two scores must differ to tell two suspects apart.
const unlike = 0.1

// moreBy is the least by which a suspect must have done more than while the victim was
// well, by ratio.
const moreBy = 1.1

// Probability is that of being the one, 0..1.
func (w *Weighed) Probability() float64 {
	z := intercept
	for i, x := range w.Features() {
		z += coefficients[i] * x
	}
	p := 1 / (1 + math.Exp(-z))
	if w.Bouts <= 1 && w.Bad <= 2*around {
		// One coincidence, just now: how likely is it that somebody comes anyway?
		p = min(p, 1+math.Expm1(-w.Arrivals)/2)
	}
	if w.More < moreBy {
		p = min(p, possibleFrom/2) // it did as much while the victim was well
	}
	if math.Abs(w.Lead) < unlike {
		p = min(p, 0.75) // another one explains it as well
	}
	return p
}

// grounds says what statistics say of a suspect.
func (w *Weighed) grounds() Grounds {
	g := Grounds{Method: ByStatistics, Probability: w.Probability()}
	likely := likelyFrom
	if w.Mild {
		likely = likelyMild
	}
	switch {
	case g.Probability >= likely:
		g.Level = Likely
	case g.Probability >= possibleFrom:
		g.Level = Possible
	}
	return g
}

// why says in words what the probability rests on most.
func (w *Weighed) why() string {
	return fmt.Sprintf("what it did and what the victim cost have a correlation of %.2f over %.0f independent intervals; it did %.0f %% of what all did more than before",
		w.Correlation, w.Intervals, 100*w.Share)
}

// sameness is the relative deviation below which what a suspect did is a constant.
const sameness = 1e-6

// around is how many intervals are compared on each side of a step.
const around = 5

// scales is the working space of weighing.
type scales struct {
	y, weight  []float64 // the victim's log cost over its threshold; intervals
	good, now  []bool    // under the threshold; among the newest bad ones
	x, own     []float64 // a suspect's work, and its own cost where that was counted
	part       []float64 // weight, 0 where the suspect did something else than now
	whole      int       // where the blocks end and the rows begin
	sums, step []float64
	out        []Weighed
}

// take adds an interval, or a block of them, to the victim's course.
func (t *scales) take(cost, limit, weight float64, now bool) {
	y := math.Log(cost / limit)
	if math.IsInf(y, 0) || math.IsNaN(y) {
		y = -3
	}
	t.y, t.weight = append(t.y, min(max(y, -3), 3)), append(t.weight, weight)
	t.good, t.now = append(t.good, y <= 0), append(t.now, now && y > 0)
}

// statistics weighs every suspect that could be the one; nil where too little is
// known. The slice is valid until the next call.
func (d *Detector) statistics(s *series, victim int) []Weighed {
	t := &d.scales
	t.y, t.weight, t.good, t.now, t.out = t.y[:0], t.weight[:0], t.good[:0], t.now[:0], t.out[:0]
	limit := s.tasks[victim].limit
	if !(limit > 0) {
		return nil
	}
	for b := range s.memory.blocks {
		if victim < len(b.counted) && b.counted[victim] > 0 {
			t.take(float64(b.cost[victim]), limit, float64(b.counted[victim]), false)
		}
	}
	t.whole = len(t.y)
	newest := s.rows[len(s.rows)-1].at
	for _, r := range s.rows {
		if c := r.cause[victim]; c == good || c == byNeighbour || c == early {
			t.take(float64(r.cost[victim]), limit, 1, newest.Sub(r.at) < d.params.OutlierWindow)
		}
	}
	ngood, nnow, excess := 0.0, 0, 0.0
	for i, good := range t.good {
		if good {
			ngood += t.weight[i]
		}
		if t.now[i] {
			nnow, excess = nnow+1, excess+t.y[i]
		}
	}
	excess /= float64(max(nnow, 1))
	bouts, nbad := t.bouts()
	if len(t.y) < fewest || ngood < float64(d.params.Outliers) || nnow == 0 {
		return nil
	}
	onset := t.onset()
	rises, arrivals := 0.0, 0.0
	for i := range s.tasks {
		k := &s.tasks[i]
		if i == victim || !k.used || d.unable(s, victim, i) != "" || !d.gather(s, victim, i) {
			continue
		}
		w := Weighed{slot: i, Mild: s.tasks[victim].mild, Task: k.task, Excess: excess, Bouts: bouts, Bad: nbad}
		rise, changed := t.weigh(&w)
		if !changed {
			continue
		}
		w.Share = max(0, rise)
		rises += w.Share
		w.Step = t.rank(t.x[t.whole:], onset)
		w.Turns = float64(turns(t.x))
		w.Intervals = min(w.Intervals, 2+w.Turns)
		arrivals += w.Turns / 2
		t.out = append(t.out, w)
	}
	first, second := math.Inf(-1), math.Inf(-1)
	for i := range t.out {
		w := &t.out[i]
		if rises > 0 {
			w.Share /= rises
		}
		w.Others = len(t.out) - 1
		w.Arrivals = arrivals * around / float64(len(t.y))
		if w.Score = w.score(); w.Score > first {
			first, second = w.Score, first
		} else {
			second = max(second, w.Score)
		}
	}
	for i := range t.out {
		w := &t.out[i]
		switch {
		case len(t.out) == 1:
			w.Lead = 1
		case w.Score == first:
			w.Lead = min(first-second, 1)
		default:
			w.Lead = max(w.Score-first, -1)
		}
	}
	return t.out
}

// bouts counts how many times the victim became bad, for two intervals at least after
// two that were not, and in how many intervals it was.
func (t *scales) bouts() (bouts, bad float64) {
	in, run := false, 0
	for i, good := range t.good {
		if !good {
			bad += t.weight[i]
		}
		if good == in {
			run++
		} else {
			run = 0
		}
		if run >= 2 || run == 1 && t.weight[i] > 1 {
			if in = !in; in {
				bouts++
			}
			run = 0
		}
	}
	return bouts, bad
}

// gather makes a suspect's course, aligned with the victim's; false if it did nothing.
func (d *Detector) gather(s *series, victim, slot int) bool {
	t := &d.scales
	t.x, t.own = t.x[:0], t.own[:0]
	for b := range s.memory.blocks {
		if victim >= len(b.counted) || b.counted[victim] == 0 {
			continue
		}
		u, c := 0.0, 0.0
		if slot < len(b.pressure) {
			u, c = float64(b.pressure[slot]), float64(b.cost[slot])
		}
		t.x, t.own = append(t.x, u), append(t.own, c)
	}
	other, column := d.costsOf(s, slot)
	k := 0 // row of other
	for _, r := range s.rows {
		switch r.cause[victim] {
		case good, byNeighbour, early:
		default:
			continue
		}
		c := 0.0
		for other != nil && k < len(other.rows) && other.rows[k].at < r.at {
			k++
		}
		if other != nil && k < len(other.rows) && other.rows[k].at == r.at {
			c = other.rows[k].ownCost(column)
		}
		t.x, t.own = append(t.x, float64(r.pressure[slot])), append(t.own, c)
	}
	did := false
	var sum, n float64
	for i, c := range t.own {
		did = did || t.x[i] > 0
		if c > 0 {
			sum, n = sum+c*t.weight[i], n+t.weight[i]
		}
	}
	if !did {
		return false
	}
	t.part = append(t.part[:0], t.weight...)
	if s.signal.PerWork && n > 0 {
		t.leaveOut()
		for i, c := range t.own {
			if c > 0 {
				t.x[i] *= sum / n / c
			}
		}
	}
	return true
}

// costsOf is the series, and the column in it, that has a task's own cost for a unit of
// its work: that of the signal itself, or of another one per unit of work where the
// signal does not count the task's; nil if none does.
func (d *Detector) costsOf(s *series, slot int) (*series, int) {
	if !s.signal.PerWork || s.counts(slot) {
		return s, slot
	}
	for _, name := range [...]sample.SignalName{sample.CPI, sample.CPT, sample.CPS} {
		o := d.series[name]
		if o == nil || o == s || !o.signal.PerWork {
			continue
		}
		if i, ok := o.index[s.tasks[slot].task.Key]; ok && o.counts(i) {
			return o, i
		}
	}
	return nil, 0
}

// counts reports whether the cost of a task was ever counted in the rows.
func (s *series) counts(slot int) bool {
	return slices.ContainsFunc(s.rows, func(r *row) bool { return r.ownCost(slot) > 0 })
}

// ownCost is what a unit of its work cost a task, 0 where that was not counted or says
// little. Of a task that did too little to be judged it still says how much more CPU
// time the same work took.
func (r *row) ownCost(slot int) float64 {
	switch r.cause[slot] {
	case good, byNeighbour, early, absent:
		return float64(r.cost[slot])
	}
	return 0
}

// another is by how much, as a ratio, a suspect's own cost differs when it does
// something else. Of several programs of one task, such as a stressor's, some hurt
// and some do not; on the recordings of design 0009 1.5 and 1.75 find the right one
// first, 2.5 tells none apart.
const another = 1.75

// leaveOut gives no weight to intervals in which a suspect did much, at another cost
// than in the newest bad ones: that was other work, and says nothing of this.
func (t *scales) leaveOut() {
	var cost, did, n float64
	for i, c := range t.own {
		if t.now[i] && c > 0 {
			cost, did, n = cost+c, did+t.x[i], n+1
		}
	}
	if n == 0 {
		return
	}
	cost, did = cost/n, did/n
	for i, c := range t.own {
		if c > 0 && t.x[i] > did/2 && (c > cost*another || c*another < cost) {
			t.part[i] = 0
		}
	}
}

// weigh compares a suspect's course with the victim's. It returns how much more work
// it did in the newest bad intervals than in good ones; false if it did the same always.
func (t *scales) weigh(w *Weighed) (rise float64, changed bool) {
	var n, mx, my, gx, gn, bx, bn float64
	for i, x := range t.x {
		k := t.part[i]
		n, mx, my = n+k, mx+k*x, my+k*t.y[i]
		if t.good[i] {
			gx, gn = gx+k*x, gn+k
		}
		if t.now[i] {
			bx, bn = bx+x, bn+1
		}
	}
	if gn == 0 || bn == 0 {
		return 0, false // it is always at something else when the victim is well
	}
	mx, my, gx, bx = mx/n, my/n, gx/gn, bx/bn
	var xx, yy, xy, lagx, lagy float64
	for i, x := range t.x {
		k, dx, dy := t.part[i], x-mx, t.y[i]-my
		xx, yy, xy = xx+k*dx*dx, yy+k*dy*dy, xy+k*dx*dy
		if i > 0 {
			lagx += math.Sqrt(k*t.part[i-1]) * dx * (t.x[i-1] - mx)
			lagy += math.Sqrt(k*t.part[i-1]) * dy * (t.y[i-1] - my)
		}
	}
	if !(xx > n*sameness*sameness*mx*mx) || yy <= 0 {
		return 0, false
	}
	w.Correlation = xy / math.Sqrt(xx*yy)
	f := max(0, lagx/xx) * max(0, lagy/yy)
	w.Intervals = n * (1 - f) / (1 + f)
	w.Cover, w.More = t.cover(gx, bx), bx/max(gx, 1e-9)
	return bx - gx, true
}

// well is how many good intervals in a row end what made a victim bad before.
const well = 3

// cover works out Weighed.Cover.
func (t *scales) cover(good, now float64) float64 {
	if now <= good {
		return 0
	}
	n, up, run := 0.0, 0.0, 0
	for i := len(t.x) - 1; i >= t.whole && run < well; i-- {
		if t.good[i] {
			run++
			continue
		}
		run = 0
		n++
		if t.x[i] > (good+now)/2 {
			up++
		}
	}
	return up / max(n, 1)
}

// differences returns, for each point of a course that has enough intervals on both
// sides, the mean after it less the mean before it.
func (t *scales) differences(x []float64) []float64 {
	n := len(x)
	t.step = t.step[:0]
	if n < 2*around {
		return t.step
	}
	t.sums = append(t.sums[:0], 0)
	for _, v := range x {
		t.sums = append(t.sums, t.sums[len(t.sums)-1]+v)
	}
	for i := around; i+around <= n; i++ {
		t.step = append(t.step, (t.sums[i+around]-2*t.sums[i]+t.sums[i-around])/around)
	}
	return t.step
}

// onset is where, in the differences of the rows, the victim's cost went up most;
// −1 if they are too few.
func (t *scales) onset() int {
	steps := t.differences(t.y[t.whole:])
	if len(steps) == 0 {
		return -1
	}
	return slices.Index(steps, slices.Max(steps))
}

// rank is how large the steps of a course near the onset are among all of it.
func (t *scales) rank(x []float64, onset int) float64 {
	steps := t.differences(x)
	if onset < 0 || len(steps) == 0 {
		return 0
	}
	most := 0.0
	for i := max(0, onset-1); i < min(len(steps), onset+2); i++ {
		most = max(most, math.Abs(steps[i]))
	}
	n := 0
	for _, v := range steps {
		if math.Abs(v) < most {
			n++
		}
	}
	return float64(n) / float64(len(steps))
}
