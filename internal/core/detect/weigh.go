package detect

import (
	"math"
	"slices"
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
	reported   bool       // own is what the suspect reports about itself
	part       []float64  // weight, 0 where the suspect did other work than now
	whole      int        // index where the blocks end and the rows begin
	sums       []float64
	usage      usageSums
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

// weighing is a suspect's statistics while it is ranked. What only few suspects need is computed late.
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
	t.sumUsage(len(s.tasks))
	t.onset = t.findOnset()
	once := t.once()
	rises := 0.0
	t.costs = t.costs[:0]
	mild := s.tasks[victim].mild
	for i, used := range t.usage.all {
		if !(used > 0) || d.excluded[i] != "" || i == victim {
			continue
		}
		n := len(t.out)
		t.out = slices.Grow(t.out, 1)[:n+1] // in its place, since it is large
		w := &t.out[n]
		*w = weighing{slot: i}
		w.Mild, w.Once, w.Good = mild, once, ngood
		if d.params.Explain {
			w.Task = s.tasks[i].task
		}
		if s.signal.PerWork && t.gatherOwn(s, i) {
			part, sums := t.gatherWork(i)
			var counted bool
			if w.Own, counted = t.ownRatio(); counted {
				t.costs = append(t.costs, w.Own)
			}
			if !t.correlate(w, part, sums) {
				t.out = t.out[:n]
				continue
			}
		} else if !t.correlateUsage(w) {
			t.out = t.out[:n]
			continue
		}
		w.Share = max(0, w.now-w.good)
		rises += w.Share
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
	t.own = t.own[:0]
	if s.signal.PerWork {
		t.gatherOwn(s, w.slot)
	}
	part, v := t.gatherWork(w.slot)
	w.Intervals = min(t.independent(w, part, v), 2+float64(levelChanges(t.x)))
	w.Cover = t.cover(w.good, w.now)
	w.Step = t.rank(t.x[t.whole:], t.onset)
	w.Score = w.score()
	w.complete = true
}

// findFirst finds the two best scores. A suspect whose correlation is too low for either is not
// completed.
func (t *statisticsBuffers) findFirst(s *series) {
	t.first, t.second = math.Inf(-1), math.Inf(-1)
	least := math.Inf(-1) // correlation
	offer := func(w *weighing) {
		t.complete(s, w)
		if w.Score > t.first {
			t.first, t.second = w.Score, t.first
		} else {
			t.second = max(t.second, w.Score)
		}
		// At the bound of a correlation more of it makes no difference.
		least = min(math.Tanh(t.second-maxScoreRest), maxFisher) - 1e-9
	}
	// The two best correlations first: few others then come near.
	for range min(2, len(t.out)) {
		var best *weighing
		for i := range t.out {
			if w := &t.out[i]; !w.complete && (best == nil || w.Correlation > best.Correlation) {
				best = w
			}
		}
		offer(best)
	}
	for i := range t.out {
		if w := &t.out[i]; !w.complete && max(w.Correlation, -maxFisher) >= least {
			offer(w)
		}
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

// maxScoreRest is more than a score has apart from the correlation's part, with Share and Step 1.
const maxScoreRest = 0.21

// Constants of bound: for a correlation r up to maxBounded both Fisher's transform and the
// negative logarithm of 1 − r² are at most this multiple of r and of r².
const (
	maxBounded  = 0.5
	atanhFactor = 1.0987 // atanh ½ ÷ ½
	logFactor   = 1.1508 // −ln ¾ ÷ ¼

	lnMaxWorkRatio = 2.3026 // > ln maxWorkRatio
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

// mostLogOdds returns an upper bound of the log-odds of a suspect that is not completed: a cheap
// one, as most suspects are far from any list. The number of intervals is unknown; the
// sum of the two terms with it is convex in its root, so the largest at one of its ends. Lead is
// not positive, as the best suspects are completed. One below least is looser.
func (t *statisticsBuffers) mostLogOdds(w *weighing, least float64) float64 {
	if w.complete || w.Correlation > maxBounded {
		return math.Inf(1)
	}
	b, r := &t.bound, max(w.Correlation, 0)
	lead := min(max(atanhFactor*r+maxScoreRest-t.first, -1), 0)
	z := b.same + features[leadInput].coefficient*lead + max(b.few*r+b.lessFew, b.many*r+b.lessMany) + features[coverInput].coefficient*w.Share*atanhFactor*r +
		features[fellowsInput].coefficient*w.Fellows + features[ownInput].coefficient*w.Own + 1e-6
	if k := features[workRatioInput].coefficient; z+k*lnMaxWorkRatio >= least {
		return z + k*math.Log(min(max(w.WorkRatio, minWorkRatio), maxWorkRatio))
	}
	return z + features[workRatioInput].coefficient*lnMaxWorkRatio
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

// fellows returns the median of the sorted costs without the given one; 0 if there is no other.
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
