package detect

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// statisticsBuffers is the workspace of the statistics. What depends only on the victim is
// computed once an analysis.
type statisticsBuffers struct {
	blocks     []*block   // that have a cost of the victim, oldest first
	rows       []*row     // the same
	y, weight  []float64  // the victim's log cost over its threshold; number of intervals
	good, now  []bool     // under the threshold; among the newest bad ones
	newest     []int      // indices of now
	recent     []int      // indices of the bad rows since the victim's last good period, newest first
	all, apart victimSums // over all intervals; over those in which a suspect did the same work as now
	x, own     []float64  // a suspect's work, and its own cost; own is empty if that was not counted
	part       []float64  // weight, 0 where the suspect did other work than now
	whole      int        // index where the blocks end and the rows begin
	sums, step []float64
	costs      []float64 // Own of every task with an own cost, sorted
	out        []weighing
	onset      int     // see findOnset
	first      float64 // the best score
	second     float64 // the next
	bound      bound
	others     []*series // per unit of work, apart from the victim's
}

// victimSums are the sums over a victim's time series in which each interval counts for a part.
type victimSums struct {
	n, good     float64   // parts: all, and those of good intervals
	square, lag float64   // of the deviations: their squares, and products of neighbours
	deviation   []float64 // of the log cost from its mean
	root        []float64 // √(part × part of the interval before); 0 for the first
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

// loadVictim makes the victim's time series; false if too little is known.
func (d *Detector) loadVictim(s *series, victim int) (good float64, ok bool) {
	t := &d.scales
	t.blocks, t.rows, t.newest, t.recent = t.blocks[:0], t.rows[:0], t.newest[:0], t.recent[:0]
	t.y, t.weight, t.good, t.now = t.y[:0], t.weight[:0], t.good[:0], t.now[:0]
	limit := s.tasks[victim].limit
	if !(limit > 0) {
		return 0, false
	}
	for b := range s.memory.blocks {
		if victim < len(b.counted) && b.counted[victim] > 0 {
			t.blocks = append(t.blocks, b)
			t.addInterval(float64(b.cost[victim]), limit, float64(b.counted[victim]), false)
		}
	}
	t.whole = len(t.y)
	newest := s.rows[len(s.rows)-1].at
	for _, r := range s.rows {
		if r.cause[victim].counted() {
			t.rows = append(t.rows, r)
			t.addInterval(float64(r.cost[victim]), limit, 1, newest.Sub(r.at) < d.params.OutlierWindow)
		}
	}
	for i, g := range t.good {
		if g {
			good += t.weight[i]
		}
		if t.now[i] {
			t.newest = append(t.newest, i)
		}
	}
	for i, run := len(t.y)-1, 0; i >= t.whole && run < recoveryIntervals; i-- {
		if run++; !t.good[i] {
			t.recent, run = append(t.recent, i), 0
		}
	}
	return good, len(t.y) >= minIntervals && good >= float64(d.params.Outliers) && len(t.newest) > 0
}

// weighing is a suspect's statistics while it is ranked. What only few suspects need is computed
// late.
type weighing struct {
	SuspectStatistics
	slot int
	// mean work in all intervals, in good ones, and in the newest bad ones
	mean, good, now float64
	square          float64 // sum of the squares of its deviations from the mean
	complete        bool    // all is computed except Lead
}

// statistics computes what tells suspects of a victim apart, for every possible one; none if too
// little is known. The slice is in the order of slots and valid until the next call.
func (d *Detector) statistics(s *series, victim int) []weighing {
	t := &d.scales
	t.out = t.out[:0]
	ngood, ok := d.loadVictim(s, victim)
	if !ok {
		return nil
	}
	d.findOthers(s)
	t.sumVictim(&t.all, t.weight)
	t.onset = t.findOnset()
	once := t.once()
	rises := 0.0
	t.costs = t.costs[:0]
	for i := range s.tasks {
		k := &s.tasks[i]
		if i == victim || !k.used || d.excluded[i] != "" {
			continue
		}
		part, sums, did := t.gather(s, i)
		if !did {
			continue
		}
		w := weighing{slot: i, SuspectStatistics: SuspectStatistics{Mild: s.tasks[victim].mild, Once: once, Good: ngood}}
		if d.params.Explain {
			w.Task = k.task
		}
		var counted bool
		if w.Own, counted = t.ownRatio(); counted {
			t.costs = append(t.costs, w.Own)
		}
		if !t.correlate(&w, part, sums) {
			continue
		}
		w.Share = max(0, w.now-w.good)
		rises += w.Share
		t.out = append(t.out, w)
	}
	slices.Sort(t.costs)
	for i := range t.out {
		w := &t.out[i]
		if rises > 0 {
			w.Share /= rises
		}
		w.Fellows = t.fellows(w.Own)
	}
	t.findFirst(s)
	t.prepareBound(ngood)
	if d.params.Explain {
		for i := range t.out {
			t.settle(s, &t.out[i])
		}
	}
	return t.out
}

// complete computes what depends only on the suspect and the victim.
func (t *statisticsBuffers) complete(s *series, w *weighing) {
	if w.complete {
		return
	}
	part, v, _ := t.gather(s, w.slot)
	w.Intervals = min(t.independent(w, part, v), 2+float64(levelChanges(t.x)))
	w.Cover = t.cover(w.good, w.now)
	w.Step = t.rank(t.x[t.whole:], t.onset)
	w.Score = w.score()
	w.complete = true
}

// findFirst finds the two best scores. A suspect whose correlation is too low for either is not
// completed.
func (t *statisticsBuffers) findFirst(s *series) {
	const most = 0.21 // of a score apart from the correlation's part: Share and Step are 1
	t.first, t.second = math.Inf(-1), math.Inf(-1)
	least := math.Inf(-1) // correlation
	for i := range t.out {
		w := &t.out[i]
		if !w.complete && max(w.Correlation, -maxFisher) < least {
			continue
		}
		t.complete(s, w)
		if w.Score > t.first {
			t.first, t.second = w.Score, t.first
		} else {
			t.second = max(t.second, w.Score)
		}
		// At the bound of a correlation more of it makes no difference.
		least = min(math.Tanh(t.second-most), maxFisher) - 1e-9
	}
}

// settle computes all of a suspect's statistics.
func (t *statisticsBuffers) settle(s *series, w *weighing) {
	t.complete(s, w)
	switch {
	case len(t.out) == 1:
		w.Lead = 1
	case w.Score == t.first:
		w.Lead = min(t.first-t.second, 1)
	default:
		w.Lead = max(w.Score-t.first, -1)
	}
}

// bound is an upper bound of the log-odds that a suspect is the antagonist which needs no
// logarithm of a correlation; +Inf for those that are completed anyway.
type bound struct {
	same      float64 // of what is the same for all
	few, many float64 // factors of a correlation's significance, for 2 intervals and for all
	lessFew   float64 // what the number of intervals itself adds
	lessMany  float64
}

// The positions of features, for their coefficients.
const (
	coverInput = iota
	significanceInput
	workRatioInput
	intervalsInput
	goodInput
	leadInput
	fellowsInput
	ownInput
)

// Constants of bound: for a correlation r up to maxBounded both Fisher's transform and the
// negative logarithm of 1 − r² are at most this multiple of r and of r².
const (
	maxBounded  = 0.5
	atanhFactor = 1.0987 // atanh ½ ÷ ½
	logFactor   = 1.1508 // −ln ¾ ÷ ¼
)

// prepareBound makes the bound of this analysis.
func (t *statisticsBuffers) prepareBound(good float64) {
	k := func(i int) float64 { return features[i].coefficient }
	n := max(t.all.n, 2)
	t.bound = bound{
		same: intercept + k(goodInput)*math.Log1p(good),
		few:  k(significanceInput) * math.Sqrt(logFactor), many: k(significanceInput) * math.Sqrt(n/2*logFactor),
		lessFew: k(intervalsInput) * math.Ln2, lessMany: k(intervalsInput) * math.Log(n),
	}
}

// mostProbability returns an upper bound of the probability of a suspect that is not completed:
// a cheap one, as most suspects are far from any list. The number of intervals is unknown; the
// sum of the two terms with it is convex in its root, so the largest at one of its ends. Lead is
// at most 0, as the best suspects are completed.
func (t *statisticsBuffers) mostProbability(w *weighing) float64 {
	if w.complete || w.Correlation > maxBounded {
		return 1
	}
	b, r := &t.bound, max(w.Correlation, 0)
	z := b.same + max(b.few*r+b.lessFew, b.many*r+b.lessMany) + features[coverInput].coefficient*w.Share*atanhFactor*r
	for _, i := range [...]int{workRatioInput, fellowsInput, ownInput} {
		z += features[i].coefficient * features[i].of(&w.SuspectStatistics)
	}
	return 1 / (1 + math.Exp(-z-1e-6))
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
	if n == 0 {
		return 0
	}
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

// gather makes the series of a suspect's work, aligned with the victim's, and returns the parts
// of its intervals that count and the victim's sums for them; false if it did nothing.
func (t *statisticsBuffers) gather(s *series, slot int) (part []float64, sums *victimSums, did bool) {
	t.own = t.own[:0]
	if !t.gatherWork(slot) {
		return nil, nil, false
	}
	if s.signal.PerWork && t.gatherOwn(s, slot) && t.divideByOwn() {
		t.sumVictim(&t.apart, t.part)
		return t.part, &t.apart, true
	}
	return t.weight, &t.all, true
}

// gatherWork makes the series of a suspect's pressure, aligned with the victim's; false if it
// used nothing.
func (t *statisticsBuffers) gatherWork(slot int) (did bool) {
	t.x = slices.Grow(t.x[:0], len(t.y))[:len(t.y)]
	x, most := t.x, 0.0
	for i, b := range t.blocks {
		u := 0.0
		if slot < len(b.pressure) {
			u = float64(b.pressure[slot])
		}
		x[i], most = u, max(most, u)
	}
	x = x[t.whole:]
	for i, r := range t.rows {
		u := float64(r.pressure[slot])
		if x[i] = u; u > most {
			most = u
		}
	}
	return most > 0
}

// gatherOwn makes the series of a suspect's own cost; false, and none, if that was never
// counted.
func (t *statisticsBuffers) gatherOwn(s *series, slot int) (counted bool) {
	t.own = t.own[:0]
	for _, b := range t.blocks {
		c := 0.0
		if slot < len(b.cost) {
			c = float64(b.cost[slot])
		}
		counted = counted || c > 0
		t.own = append(t.own, c)
	}
	other, column := t.costsOf(s, slot)
	if other == nil && !counted {
		t.own = t.own[:0]
		return false
	}
	k := 0 // row index in other
	for _, r := range t.rows {
		c := 0.0
		for other != nil && k < len(other.rows) && other.rows[k].at < r.at {
			k++
		}
		if other != nil && k < len(other.rows) && other.rows[k].at == r.at {
			c = other.rows[k].ownCost(column)
		}
		counted = counted || c > 0
		t.own = append(t.own, c)
	}
	if !counted {
		t.own = t.own[:0]
	}
	return counted
}

// divideByOwn makes work of a suspect's pressure, by its own cost. It reports whether it made
// t.part, since some intervals do not count.
func (t *statisticsBuffers) divideByOwn() (apart bool) {
	var sum, n float64
	for i, c := range t.own {
		if c > 0 {
			sum, n = sum+c*t.weight[i], n+t.weight[i]
		}
	}
	t.part = append(t.part[:0], t.weight...)
	apart = t.dropOtherWork()
	// Blocks keep the cost only of judged intervals. Where they have none, the usage in
	// them cannot be compared with work.
	if !slices.ContainsFunc(t.own[:t.whole], func(c float64) bool { return c > 0 }) {
		for i := range t.whole {
			if t.x[i] > 0 {
				t.part[i], apart = 0, true
			}
		}
	}
	usual := sum / n
	for i, c := range t.own {
		if c > 0 {
			t.x[i] *= usual / c
		}
	}
	return apart
}

// findOthers finds the other series per unit of work.
func (d *Detector) findOthers(s *series) {
	t := &d.scales
	t.others = t.others[:0]
	for _, name := range [...]sample.SignalName{sample.CPI, sample.CPT, sample.CPS} {
		if o := d.series[name]; o != nil && o != s && o.signal.PerWork {
			t.others = append(t.others, o)
		}
	}
}

// costsOf returns the series, and the column in it, with a task's own cost for a unit of
// its work: that of the victim's signal, which is per unit of work, or of another such one if
// that signal does not count the task's; nil if there is none.
func (t *statisticsBuffers) costsOf(s *series, slot int) (*series, int) {
	if s.counts(slot) {
		return s, slot
	}
	for _, o := range t.others {
		if i, ok := o.index[s.tasks[slot].task.Key]; ok && o.counts(i) {
			return o, i
		}
	}
	return nil, 0
}

// counts reports whether the cost of a task was ever counted in the rows.
func (s *series) counts(slot int) bool {
	t := &s.tasks[slot]
	return t.counted && t.lastCounted >= s.rows[0].at
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

// dropOtherWork gives part 0 to intervals in which a suspect did much work at another cost
// than in the newest bad ones: that was other work and is no evidence on the current one. It
// reports whether there are any.
func (t *statisticsBuffers) dropOtherWork() (any bool) {
	var cost, did, n float64
	for _, i := range t.newest {
		if c := t.own[i]; c > 0 {
			cost, did, n = cost+c, did+t.x[i], n+1
		}
	}
	if n == 0 {
		return false
	}
	cost, did = cost/n, did/n
	for i, c := range t.own {
		if c > 0 && t.x[i] > did/2 && (c > cost*otherWorkRatio || c*otherWorkRatio < cost) {
			t.part[i], any = 0, true
		}
	}
	return any
}

// sumVictim makes the sums for the given parts of the victim's intervals.
func (t *statisticsBuffers) sumVictim(v *victimSums, part []float64) {
	*v = victimSums{deviation: v.deviation[:0], root: v.root[:0]}
	mean, before, last := 0.0, 0.0, 0.0
	for i, k := range part {
		v.n, mean = v.n+k, mean+k*t.y[i]
		if t.good[i] {
			v.good += k
		}
	}
	mean /= v.n
	for i, k := range part {
		dy, root := t.y[i]-mean, math.Sqrt(k*before)
		v.square += k * dy * dy
		v.lag += root * dy * last
		v.deviation, v.root = append(v.deviation, dy), append(v.root, root)
		before, last = k, dy
	}
}

// correlate compares a suspect's time series with the victim's, of which v has the sums for the
// same parts. It returns false if the suspect's work was constant.
func (t *statisticsBuffers) correlate(w *weighing, part []float64, v *victimSums) (changed bool) {
	if v.good == 0 {
		return false // it always does other work when the victim is good
	}
	t.means(w, part, v)
	mx := w.mean
	x, deviation := t.x[:len(part)], v.deviation[:len(part)]
	var xx, xy float64
	for i, k := range part {
		dx := x[i] - mx
		xx += k * dx * dx
		xy += k * dx * deviation[i]
	}
	if !(xx > v.n*constantTolerance*constantTolerance*mx*mx) || v.square <= 0 {
		return false
	}
	w.square = xx
	w.Correlation = xy / math.Sqrt(xx*v.square)
	w.WorkRatio = w.now / max(w.good, 1e-9)
	return true
}

// means computes a suspect's mean work.
func (t *statisticsBuffers) means(w *weighing, part []float64, v *victimSums) {
	x, good := t.x[:len(part)], t.good[:len(part)]
	var mx, gx, bx float64
	for i, k := range part {
		kx := k * x[i]
		mx += kx
		if good[i] {
			gx += kx
		}
	}
	for _, i := range t.newest {
		bx += x[i]
	}
	w.mean, w.good, w.now = mx/v.n, gx/v.good, bx/float64(len(t.newest))
}

// independent returns the effective number of independent intervals of a correlation.
func (t *statisticsBuffers) independent(w *weighing, part []float64, v *victimSums) float64 {
	x, root := t.x[:len(part)], v.root[:len(part)]
	var lag, last float64
	for i := range part {
		dx := x[i] - w.mean
		lag += root[i] * dx * last
		last = dx
	}
	f := max(0, lag/w.square) * max(0, v.lag/v.square)
	return v.n * (1 - f) / (1 + f)
}

// cover computes SuspectStatistics.Cover.
func (t *statisticsBuffers) cover(good, now float64) float64 {
	if now <= good {
		return 0
	}
	up := 0
	for _, i := range t.recent {
		if t.x[i] > (good+now)/2 {
			up++
		}
	}
	return float64(up) / max(float64(len(t.recent)), 1)
}

// accumulate makes the sums of the first values of a time series: none, one, and so on. It
// returns the number of points with enough intervals on both sides.
func (t *statisticsBuffers) accumulate(x []float64) (points int) {
	t.sums = slices.Grow(t.sums[:0], len(x)+1)[:len(x)+1]
	sums, sum := t.sums[1:len(x)+1], 0.0
	for i, v := range x {
		sum += v
		sums[i] = sum
	}
	t.sums[0] = 0
	return max(0, len(x)-2*stepIntervals+1)
}

// findOnset returns the index, among the points of the rows, of the largest increase of the
// victim's cost, from the mean before it to the mean after it; −1 if they are too few.
func (t *statisticsBuffers) findOnset() int {
	points := t.accumulate(t.y[t.whole:])
	best, most := -1, 0.0
	for i := range points {
		if step := t.stepAt(i) / stepIntervals; best < 0 || step > most {
			best, most = i, step
		}
	}
	return best
}

// stepAt returns the sum of the intervals after a point less that of the same number before
// it.
func (t *statisticsBuffers) stepAt(point int) float64 {
	i := point + stepIntervals
	return t.sums[i+stepIntervals] - 2*t.sums[i] + t.sums[i-stepIntervals]
}

// rank returns the share of a series' steps, from the mean before a point to the mean after
// it, that are smaller than the one at the onset.
func (t *statisticsBuffers) rank(x []float64, onset int) float64 {
	if onset < 0 {
		return 0
	}
	points := t.accumulate(x)
	most := 0.0
	for i := max(0, onset-1); i < min(points, onset+2); i++ {
		most = max(most, math.Abs(t.stepAt(i)))
	}
	// Means may be equal where sums differ by rounding: only those are divided.
	near, limit := most*(1-1e-12), most/stepIntervals
	n := 0
	before, middle, after := t.sums[:points], t.sums[stepIntervals:][:points], t.sums[2*stepIntervals:][:points]
	for i, b := range before {
		step := math.Abs(after[i] - 2*middle[i] + b)
		if step < near || step < most && step/stepIntervals < limit {
			n++
		}
	}
	return float64(n) / float64(points)
}
