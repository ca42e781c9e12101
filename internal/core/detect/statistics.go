package detect

import (
	"fmt"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// SuspectStatistics are the statistics of a suspect, from everything that is remembered of it and the
// victim (docs/design/0009).
type SuspectStatistics struct {
	slot int
	Task sample.Task
	// Correlation of the logarithm of the victim's cost with the suspect's work, −1 to 1.
	// Work is its pressure ÷ (its own cost ÷ its usual cost): a co-victim uses more for the
	// same work.
	Correlation float64
	// Intervals is the effective number of independent intervals of that correlation
	// (Bartlett's formula for series of order 1).
	Intervals float64
	// Share is its part of the increase of all suspects' work from good intervals to the
	// newest bad ones, 0..1.
	Share float64
	// WorkRatio is the ratio of its work in the newest bad intervals to that in good ones.
	WorkRatio float64
	// Step is the rank of its step at the onset of the victim's excess among all its steps,
	// 0..1.
	Step float64
	// Cover is the part of the bad intervals since the victim's last good period with more
	// than half of its increase: a task that came later did not cause them.
	Cover float64
	// Score is the value by which suspects are ranked, Lead its difference from the best
	// other suspect's.
	Score, Lead float64
	// Good is the number of good intervals.
	Good float64
	// Own is the logarithm of the ratio of its own cost in the newest bad intervals to that in
	// good ones, Fellows the median Own of the other suspects: what is slow for other tasks
	// too has a cause that reaches them all. 0 if such costs are not counted.
	Own, Fellows float64
	// Once says that the victim became bad once, and recently: this is one coincidence.
	Once bool
	// Mild says that the victim is mildly worse for long (level).
	Mild bool
}

// score ranks suspects: by the correlation after Fisher's variance-stabilising transform,
// and with small weights by Share and Step.
func (w *SuspectStatistics) score() float64 {
	return fisher(w.Correlation) + scoreOfShare*math.Log(w.Share+minShare) + scoreOfStep*w.Step
}

func fisher(r float64) float64 { return math.Atanh(min(max(r, -maxFisher), maxFisher)) }

// Constants of the statistics: unit, meaning, and how each was chosen (docs/design/0009).
const (
	// Probability: least for level possible. Fixed with the other two by the trade of trials
	// for recall.
	possibleFrom = 0.3
	// Probability: least for a trial. 0.3, 0.5 and 0.7 were measured; design 0009, "Levels".
	triedFrom = 0.5
	// Probability: the same if the victim is only mildly worse (level), since a task's own
	// variation looks similar. Not stated.
	triedMild = 0.8
	// Probability: least for level likely. 0.8 to 0.95 were measured; design 0009, "Eight
	// inputs".
	likelyFrom = 0.8
	// Probability: the same if the victim is only mildly worse, or became bad once and
	// recently. Design 0009, "Eight inputs".
	likelyWeak = 0.97
	// Score: least lead that tells two suspects apart. Design 0009, "Eight inputs".
	minScoreLead = 0.1
	// Probability: bound for suspects that cannot be told apart. Design 0009, "Eight inputs".
	maxAmbiguous = 0.75
	// Ratio: least between a suspect's own costs that indicates other work. Of several
	// programs of one task, such as a stressor's, some hurt and some do not. On the recordings
	// of design 0009 1.5 and 1.75 put the right one first, 2.5 separates none.
	otherWorkRatio = 1.75
	// Score for a unit of ln Share and of Step: small weights next to Fisher's z (design
	// 0009). Not stated.
	scoreOfShare = 0.1
	scoreOfStep  = 0.2
	// Intervals: compared on each side of a step. Not stated.
	stepIntervals = 5
	// Intervals: consecutive good ones that end a bad period of a victim. Not stated.
	recoveryIntervals = 3
	// Relative deviation: below it a suspect's work counts as constant. Numerical.
	constantTolerance = 1e-6
	// Share: added before a logarithm. Numerical.
	minShare = 0.1
	// Correlation: bound of Fisher's transform. Numerical.
	maxFisher = 0.98
	// Logarithm of cost ÷ threshold: bound. Numerical.
	maxLogCost = 3
	// Ratio: bounds of WorkRatio as an input. Not stated.
	minWorkRatio, maxWorkRatio = 0.5, 10
	// Logarithm of a ratio of own costs: bound of Own and Fellows. 0.2 to 1 were measured;
	// design 0009, "Eight inputs".
	maxOwn = 0.3
)

// intercept is the log-odds of a suspect whose features are all 0; it and the coefficients
// of features are those of a logistic regression, fitted by eval/quality/fit on labelled
// recordings, the corpus's tuning programs and the simulator's tuning half (docs/design/0009).
const intercept = -5.647

// features are the inputs of the probability. A coefficient is in log-odds for a unit of
// its feature. The bounds of features are numerical.
var features = [...]struct {
	coefficient float64
	of          func(*SuspectStatistics) float64
}{
	{2.974, func(w *SuspectStatistics) float64 { return w.Cover * w.Share * fisher(w.Correlation) }},
	{4.509, (*SuspectStatistics).significance},
	{1.166, func(w *SuspectStatistics) float64 { return math.Log(min(max(w.WorkRatio, minWorkRatio), maxWorkRatio)) }},
	{-0.805, func(w *SuspectStatistics) float64 { return math.Log(max(w.Intervals, 2)) }},
	{0.178, func(w *SuspectStatistics) float64 { return math.Log1p(w.Good) }},
	{1.007, func(w *SuspectStatistics) float64 { return w.Lead }},
	{8.469, func(w *SuspectStatistics) float64 { return w.Fellows }},
	{-1.958, func(w *SuspectStatistics) float64 { return w.Own }},
}

// significance is the root of the log-likelihood ratio of its correlation, if that is
// positive, against none.
func (w *SuspectStatistics) significance() float64 {
	r := min(max(w.Correlation, 0), 0.995)
	return math.Sqrt(min(-max(w.Intervals, 2)/2*math.Log(1-r*r), 60))
}

// Features returns the inputs of the probability.
func (w *SuspectStatistics) Features() []float64 {
	all := make([]float64, len(features))
	for i := range features {
		all[i] = features[i].of(w)
	}
	return all
}

// Probability is the probability that the suspect is the antagonist, 0..1.
func (w *SuspectStatistics) Probability() float64 {
	z := intercept
	for i := range features {
		z += features[i].coefficient * features[i].of(w)
	}
	p := 1 / (1 + math.Exp(-z))
	if math.Abs(w.Lead) < minScoreLead {
		p = min(p, maxAmbiguous) // another suspect explains it as well
	}
	return p
}

// grounds converts the statistics of a suspect to its level.
func (w *SuspectStatistics) grounds() Grounds {
	g := Grounds{Basis: ByStatistics, Probability: w.Probability()}
	likely := likelyFrom
	if w.Mild || w.Once {
		likely = likelyWeak
	}
	switch {
	case g.Probability >= likely:
		g.Level = Likely
	case g.Probability >= possibleFrom:
		g.Level = Possible
	}
	return g
}

// why says in words what the probability depends on most.
func (w *SuspectStatistics) why() string {
	return fmt.Sprintf("its work and the victim's cost have a correlation of %.2f over %.0f independent intervals; its share of the increase in all suspects' work is %.0f %%",
		w.Correlation, w.Intervals, 100*w.Share)
}

// statisticsBuffers is the workspace of the statistics.
type statisticsBuffers struct {
	y, weight  []float64 // the victim's log cost over its threshold; number of intervals
	good, now  []bool    // under the threshold; among the newest bad ones
	x, own     []float64 // a suspect's work, and its own cost if that was counted
	part       []float64 // weight, 0 where the suspect did other work than now
	whole      int       // index where the blocks end and the rows begin
	sums, step []float64
	costs      []float64 // Own of every task with an own cost, sorted
	out        []SuspectStatistics
}

// addInterval adds an interval, or a block of them, to the victim's time series.
func (t *statisticsBuffers) addInterval(cost, limit, weight float64, now bool) {
	y := math.Log(cost / limit)
	if math.IsInf(y, 0) || math.IsNaN(y) {
		y = -maxLogCost
	}
	t.y, t.weight = append(t.y, min(max(y, -maxLogCost), maxLogCost)), append(t.weight, weight)
	t.good, t.now = append(t.good, y <= 0), append(t.now, now && y > 0)
}

// statistics computes SuspectStatistics for every possible suspect; nil if too little is known. The
// slice is valid until the next call.
func (d *Detector) statistics(s *series, victim int) []SuspectStatistics {
	t := &d.scales
	t.y, t.weight, t.good, t.now, t.out = t.y[:0], t.weight[:0], t.good[:0], t.now[:0], t.out[:0]
	limit := s.tasks[victim].limit
	if !(limit > 0) {
		return nil
	}
	for b := range s.memory.blocks {
		if victim < len(b.counted) && b.counted[victim] > 0 {
			t.addInterval(float64(b.cost[victim]), limit, float64(b.counted[victim]), false)
		}
	}
	t.whole = len(t.y)
	newest := s.rows[len(s.rows)-1].at
	for _, r := range s.rows {
		if r.cause[victim].counted() {
			t.addInterval(float64(r.cost[victim]), limit, 1, newest.Sub(r.at) < d.params.OutlierWindow)
		}
	}
	ngood, nnow := 0.0, 0
	for i, good := range t.good {
		if good {
			ngood += t.weight[i]
		}
		if t.now[i] {
			nnow++
		}
	}
	if len(t.y) < minIntervals || ngood < float64(d.params.Outliers) || nnow == 0 {
		return nil
	}
	onset, once := t.onset(), t.once()
	rises := 0.0
	t.costs = t.costs[:0]
	for i := range s.tasks {
		k := &s.tasks[i]
		if i == victim || !k.used || d.exclusion(s, victim, i) != "" || !d.gather(s, victim, i) {
			continue
		}
		w := SuspectStatistics{slot: i, Mild: s.tasks[victim].mild, Once: once, Task: k.task, Good: ngood}
		if s.signal.PerWork {
			var counted bool
			if w.Own, counted = t.ownRatio(); counted {
				t.costs = append(t.costs, w.Own)
			}
		}
		rise, changed := t.correlate(&w)
		if !changed {
			continue
		}
		w.Share = max(0, rise)
		rises += w.Share
		w.Step = t.rank(t.x[t.whole:], onset)
		w.Intervals = min(w.Intervals, 2+float64(levelChanges(t.x)))
		t.out = append(t.out, w)
	}
	slices.Sort(t.costs)
	first, second := math.Inf(-1), math.Inf(-1)
	for i := range t.out {
		w := &t.out[i]
		if rises > 0 {
			w.Share /= rises
		}
		w.Fellows = t.fellows(w.Own)
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

// once reports whether the victim became bad once at most, for at least two intervals after
// two that were not, and has at most twice stepIntervals bad ones.
func (t *statisticsBuffers) once() bool {
	in, run, times, bad := false, 0, 0, 0.0
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
				times++
			}
			run = 0
		}
	}
	return times <= 1 && bad <= 2*stepIntervals
}

// ownRatio computes SuspectStatistics.Own; false if the own cost is not counted both now and
// in good intervals.
func (t *statisticsBuffers) ownRatio() (float64, bool) {
	var now, n, good, m float64
	for i, c := range t.own {
		switch {
		case !(c > 0):
		case t.now[i]:
			now, n = now+c, n+1
		case t.good[i]:
			good, m = good+t.weight[i]*c, m+t.weight[i]
		}
	}
	if n == 0 || m == 0 {
		return 0, false
	}
	return min(max(math.Log(now/n/(good/m)), -maxOwn), maxOwn), true
}

// fellows returns the median of the sorted costs without the given one; 0 if there is no
// other.
func (t *statisticsBuffers) fellows(own float64) float64 {
	n := len(t.costs)
	at, found := slices.BinarySearch(t.costs, own)
	if found {
		n--
	}
	if n == 0 {
		return 0
	}
	middle := n / 2
	if found && at <= middle {
		middle++
	}
	return t.costs[middle]
}

// gather makes a suspect's series, aligned with the victim's; false if it used nothing.
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
	k := 0 // row index in other
	for _, r := range s.rows {
		if !r.cause[victim].counted() {
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
		t.dropOtherWork()
		// Blocks keep the cost only of judged intervals. Where they have none, the usage in
		// them cannot be compared with work.
		if !slices.ContainsFunc(t.own[:t.whole], func(c float64) bool { return c > 0 }) {
			for i := range t.whole {
				if t.x[i] > 0 {
					t.part[i] = 0
				}
			}
		}
		for i, c := range t.own {
			if c > 0 {
				t.x[i] *= sum / n / c
			}
		}
	}
	return true
}

// costsOf returns the series, and the column in it, with a task's own cost for a unit of
// its work: that of the signal itself, or of another one per unit of work if the signal
// does not count the task's; nil if there is none.
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

// ownCost returns a task's cost for a unit of its work, 0 if that was not counted or is not
// reliable. It includes tasks that did too little to be judged: their cost still shows how
// much more CPU time the same work took.
func (r *row) ownCost(slot int) float64 {
	switch r.cause[slot] {
	case good, byNeighbour, noSpec, absent:
		return float64(r.cost[slot])
	}
	return 0
}

// dropOtherWork gives weight 0 to intervals in which a suspect did much work at another cost
// than in the newest bad ones: that was other work and is no evidence on the current one.
func (t *statisticsBuffers) dropOtherWork() {
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
		if c > 0 && t.x[i] > did/2 && (c > cost*otherWorkRatio || c*otherWorkRatio < cost) {
			t.part[i] = 0
		}
	}
}

// correlate compares a suspect's time series with the victim's. It returns the increase of its
// work from good intervals to the newest bad ones; false if its work was constant.
func (t *statisticsBuffers) correlate(w *SuspectStatistics) (rise float64, changed bool) {
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
		return 0, false // it always does other work when the victim is good
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
	if !(xx > n*constantTolerance*constantTolerance*mx*mx) || yy <= 0 {
		return 0, false
	}
	w.Correlation = xy / math.Sqrt(xx*yy)
	f := max(0, lagx/xx) * max(0, lagy/yy)
	w.Intervals = n * (1 - f) / (1 + f)
	w.Cover, w.WorkRatio = t.cover(gx, bx), bx/max(gx, 1e-9)
	return bx - gx, true
}

// cover computes SuspectStatistics.Cover.
func (t *statisticsBuffers) cover(good, now float64) float64 {
	if now <= good {
		return 0
	}
	n, up, run := 0.0, 0.0, 0
	for i := len(t.x) - 1; i >= t.whole && run < recoveryIntervals; i-- {
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

// differences returns, for each point of a time series with enough intervals on both sides,
// the mean after it less the mean before it.
func (t *statisticsBuffers) differences(x []float64) []float64 {
	n := len(x)
	t.step = t.step[:0]
	if n < 2*stepIntervals {
		return t.step
	}
	t.sums = append(t.sums[:0], 0)
	for _, v := range x {
		t.sums = append(t.sums, t.sums[len(t.sums)-1]+v)
	}
	for i := stepIntervals; i+stepIntervals <= n; i++ {
		t.step = append(t.step, (t.sums[i+stepIntervals]-2*t.sums[i]+t.sums[i-stepIntervals])/stepIntervals)
	}
	return t.step
}

// onset returns the index, in the differences of the rows, of the largest increase of the
// victim's cost; −1 if they are too few.
func (t *statisticsBuffers) onset() int {
	steps := t.differences(t.y[t.whole:])
	if len(steps) == 0 {
		return -1
	}
	return slices.Index(steps, slices.Max(steps))
}

// rank returns the share of a series' steps that are smaller than the one at the onset.
func (t *statisticsBuffers) rank(x []float64, onset int) float64 {
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
