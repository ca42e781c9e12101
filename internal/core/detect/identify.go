package detect

import (
	"cmp"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// pair is one interval in which the victim was judged, with the weight of a suspect's pressure in it.
type pair struct {
	row    *row
	weight float64
}

// weight is the term of CPI²'s correlation (section 4.2) that a unit of a
// suspect's normalised usage contributes where the victim's cost was c, with
// threshold t: 1 − t/c above it, c/t − 1 below, 0 at it.
func weight(c, t float64) float64 {
	switch {
	case c > t:
		return 1 - t/c
	case c < t:
		return c/t - 1
	}
	return 0
}

// candidate is a suspect while it is being ranked.
type candidate struct {
	slot        int
	correlation float64
	usage       float64
	grounds     Grounds
	worthTrial  bool // not proven, but a trial could decide
	rank        int  // 0 reaches the bar, 1 as co-victim, 2 does not
	excluded    string
}

func (d *Detector) analyse(a anomaly, victim int) Finding {
	s := a.signal
	t := &s.tasks[victim]
	f := Finding{At: a.at, Signal: s.signal.Name, Victim: t.task, Spec: t.spec, Result: Result{Kind: a.kind, Threshold: t.limit}}
	for _, m := range t.bad {
		if kindOf[m.cause] == a.kind {
			if f.Bad == 0 {
				f.First = m.at
			}
			f.Bad++
		}
	}
	goodSamples := d.compare(s, victim, &f, a.review)
	f.AllBad = goodSamples == 0
	if a.kind == OwnQuota {
		f.HeldBy = t.heldBy
	}
	if a.kind != Neighbour {
		return f
	}
	d.rank(s, victim, goodSamples > 0)
	for _, c := range d.top {
		if c.rank < 2 {
			f.Antagonists++
		}
	}
	f.Suspects = d.describe(s)
	if d.params.Explain {
		d.explained = d.explained[:0]
		for i := range d.weighed {
			d.explained = append(d.explained, d.weighed[i].SuspectStatistics)
		}
		f.Statistics = d.explained
	}
	own := d.params.Switches.PhaseChange && goodSamples > 0
	for f.TrialCandidates < len(d.top) && d.top[f.TrialCandidates].worthTrial {
		f.TrialCandidates++
	}
	f.Trial = f.TrialCandidates > 0
	switch {
	case own && d.moreWork(s, victim):
		f.Change, f.Trial = MoreWork, false
	case f.Trial && f.Antagonists == 0:
		f.Kind = Indeterminate
	case f.Antagonists == 0:
		f.Kind = Nobody
		if own {
			f.Change = d.change(s, victim)
		}
	case d.params.Switches.Indeterminate && goodSamples == 0 && !d.params.Switches.Evidence:
		f.Kind, f.Antagonists = Indeterminate, 0
	}
	if f.Change != "" {
		f.Kind, f.Antagonists = PhaseChange, 0
	}
	switch {
	case f.Trial && !a.review:
		t.trialRequested, t.trialSuspect = a.at, f.Suspects[0].Key
	case f.Antagonists > 0 && !f.Trial:
		t.trialRequested = 0
	}
	return f
}

// compare collects the victim's pairs, sets the mean cost since the anomaly began, and returns the
// number of good pairs. Intervals in which any task was limited may be better than without the limit.
// If there are any, or after a trial, the mean is over the other intervals that were bad. After a trial
// those before it count too: the first interval without the limit may still be better than the others.
func (d *Detector) compare(s *series, victim int, f *Finding, tried bool) (goodSamples int) {
	var sum, n [3]float64
	const bad, well, under = 0, 1, 2
	from := f.First
	if tried {
		from = min(from, s.tasks[victim].trialRequested.Add(-d.params.OutlierWindow))
	}
	for _, r := range s.rows {
		c, is := r.cause[victim], bad
		if !c.judged() || r.at < from {
			continue
		}
		if r.anyLimited() {
			is, tried = under, true
		} else if c == good {
			is = well
		}
		sum[is], n[is] = sum[is]+float64(r.cost[victim]), n[is]+1
	}
	switch {
	case n[bad] > 0 && tried:
		f.Cost = sum[bad] / n[bad]
	case n[bad] > 0:
		f.Cost = (sum[bad] + sum[well]) / (n[bad] + n[well])
	case n[under] > 0:
		f.Cost = sum[under] / n[under]
		if s.tasks[victim].mild && !s.limitsLast() { // the remaining excess under a hold is not an anomaly
			f.Bad = 0
		}
	}
	newest := s.rows[len(s.rows)-1].at
	window := s.within(newest.Add(-d.params.Window), newest)
	goodSamples = d.align(window, victim, f.Threshold)
	if goodSamples == 0 && d.params.Switches.LookBack {
		if moved := d.lookBack(s, victim); len(moved) > 0 {
			goodSamples = d.align(moved, victim, f.Threshold)
		}
	}
	f.Pairs = len(d.pairs)
	return goodSamples
}

// align makes pairs of the rows in which the victim was judged.
func (d *Detector) align(rows []*row, victim int, threshold float64) (goodSamples int) {
	d.pairs = d.pairs[:0]
	for _, r := range rows {
		switch r.cause[victim] {
		case good:
			goodSamples++
		case byNeighbour:
		default:
			continue // not judged, or explained by the victim itself: no information on suspects
		}
		d.pairs = append(d.pairs, pair{r, weight(float64(r.cost[victim]), threshold)})
	}
	return goodSamples
}

// maxLookBackGood, in intervals: most good intervals at the beginning of a window that was
// moved back. How it was chosen is not stated.
const maxLookBackGood = 5

// lookBack returns the rows around the end of the victim's last good period: its last good intervals
// and a window's length of bad ones after them. Later intervals do not count: a task that arrives while
// the victim is already bad did not cause that. It is nil if no good interval is known.
func (d *Detector) lookBack(s *series, victim int) []*row {
	first, n, began := len(s.rows), 0, sample.Millis(0) // of the good ones; end of the first bad one after them
	for i := len(s.rows) - 1; i >= 0 && n < maxLookBackGood; i-- {
		switch s.rows[i].cause[victim] {
		case good:
			first, n = i, n+1
		case byNeighbour:
			if n == 0 {
				began = s.rows[i].at
			}
		}
	}
	if n == 0 {
		return nil
	}
	last := len(s.rows)
	for last > first && s.rows[last-1].at >= began.Add(d.params.Window) {
		last--
	}
	return s.rows[first:last]
}

// rank correlates every task with the victim and puts the best into d.top and the best
// excluded ones into d.bottom. It does not allocate once its buffers have grown. comparable
// is false if no interval was good.
func (d *Detector) rank(s *series, victim int, comparable bool) {
	d.exclude(s, victim)
	n := len(s.tasks)
	d.num, d.den = zeroed(d.num, n), zeroed(d.den, n)
	num, den := d.num[:n], d.den[:n]
	for _, p := range d.pairs {
		w, pressure := p.weight, p.row.pressure
		for i, u := range pressure {
			num[i] += w * float64(u)
			den[i] += float64(u)
		}
	}
	d.top, d.bottom = d.top[:0], d.bottom[:0]
	r := ranking{victim: victim, selected: d.selectSuspect(s, victim), comparable: comparable}
	d.weighed = nil
	if d.params.Switches.Evidence {
		r.books = d.account(s, victim)
		if r.books == nil || d.params.Explain {
			d.weighed = d.statistics(s, victim)
		}
		// The regression only confirms trials.
		if d.limits {
			r.proofs = d.regress(s, victim)
		}
	}
	// Those whose statistics are complete are the likely ones: after them few others can be listed.
	for _, complete := range [...]bool{true, false} {
		weighed := d.weighed
		for i := range s.tasks {
			var w *weighing
			if len(weighed) > 0 && weighed[0].slot == i {
				w, weighed = &weighed[0], weighed[1:]
			}
			if complete == (w != nil && w.complete) && d.isSuspect(s, victim, i) {
				d.consider(s, &r, i, w)
			}
		}
	}
}

// ranking is what is the same for all suspects of an analysis.
type ranking struct {
	victim     int
	selected   int  // the suspect that the rule selects, −1 for none
	comparable bool // an interval was good
	proofs     []fit
	books      *accountTotals
}

// consider puts a suspect, of which w are the statistics or nil, into d.top or d.bottom if it is
// among the best.
func (d *Detector) consider(s *series, r *ranking, i int, w *weighing) {
	capped := d.params.Switches.CappedApart && s.tasks[i].flags&sample.Capped != 0
	if r.books == nil && w != nil && !inModel(r.proofs, i) && !d.mayBeListed(w, capped) {
		return
	}
	c := candidate{slot: i, rank: 2, excluded: d.excluded[i]}
	if capped {
		c.excluded = "capped already"
	}
	if den := d.den[i]; den > 0 {
		c.correlation, c.usage = d.num[i]/den, den/float64(len(d.pairs))
	}
	clears := c.correlation >= d.params.Correlation || i == r.selected
	if d.params.Switches.Evidence {
		denied := d.limitFailed(s, r.victim, i)
		c.grounds = d.grounds(s, i, w, r.proofs, r.books)
		if denied && c.grounds.Basis != ByAccounts {
			c.grounds.Level, c.grounds.Why = min(c.grounds.Level, Possible), "limiting it did not help"
		}
		clears = c.grounds.Level >= Likely
		tried := triedFrom
		if s.tasks[r.victim].mild {
			tried = triedMild
		}
		c.worthTrial = !denied && (c.grounds.Level == Likely || c.grounds.Probability >= tried) && c.grounds.Level < Proven && c.excluded == "" && s.tasks[i].task.MayBeCapped() &&
			d.meanBadUsage(r.victim, i) >= d.leastPressure(s)
	} else if c.grounds.Basis = ByFormula; clears {
		c.grounds.Level = Likely
	}
	if c.excluded == "" && clears {
		switch {
		case d.params.Switches.LeastPressure && d.meanBadUsage(r.victim, i) < d.leastPressure(s):
			c.excluded = "used almost nothing in the victim's bad intervals"
		case d.params.Switches.PhaseChange && !d.params.Switches.Evidence && r.comparable && !d.moved(s, r.victim, i, confirmErrors):
			c.excluded = "used no more in the victim's bad intervals than in its good ones"
		}
	}
	if c.excluded != "" {
		d.bottom = d.keep(s, d.bottom, c)
		return
	}
	if clears {
		c.rank = 0
		if d.params.Switches.CoVictim && d.coVictim(r.victim, i) {
			c.rank = 1
		}
	}
	d.top = d.keep(s, d.top, c)
}

// grounds returns the evidence against a suspect under switch Evidence: a trial that the regression
// confirms, the accounts of the queue if it has any, or otherwise the statistics, nil for none.
func (d *Detector) grounds(s *series, slot int, w *weighing, proofs []fit, books *accountTotals) Grounds {
	var g Grounds
	if books != nil {
		g = books.grounds(slot, s.tasks[slot].task.Key, d.leastPressure(s))
	} else if w != nil {
		d.scales.settle(s, w)
		g = w.grounds()
	}
	if len(proofs) == 0 {
		return g
	}
	k := slices.IndexFunc(proofs, func(p fit) bool { return p.slot == slot })
	if k < 0 {
		return g
	}
	if p := &proofs[k]; g.Level < Proven && p.limits > 0 && p.proves() {
		g.Level, g.Basis, g.Why = Proven, ByTrial, "limiting it reduced the victim's cost each time"
	}
	return g
}

// isSuspect reports whether a task may be suspected of hurting the victim.
func (d *Detector) isSuspect(s *series, victim, i int) bool {
	return i != victim && s.tasks[i].used && (d.params.Switches.Outside || s.tasks[i].task.Name != OutsideName)
}

// inModel reports whether a suspect is in the model of the trials.
func inModel(proofs []fit, slot int) bool {
	return slices.ContainsFunc(proofs, func(p fit) bool { return p.slot == slot })
}

// mayBeListed reports whether a suspect can be among the best ones, or among the best ones that
// are excluded because they are limited, with the highest probability that it can have.
func (d *Detector) mayBeListed(w *weighing, excluded bool) bool {
	list := d.top
	if excluded {
		list = d.bottom
	}
	if len(list) < d.params.Top {
		return true
	}
	least := possibleFrom
	if last := &list[len(list)-1]; last.rank == 2 && last.grounds.Level == None {
		least = last.grounds.figure()
	}
	if least == 0 {
		return true
	}
	if least != d.least {
		d.least, d.leastLogOdds = least, math.Log(least/(1-least))
	}
	return d.scales.mostLogOdds(w, d.leastLogOdds) >= d.leastLogOdds
}

// weighing returns the statistics of a suspect, nil if there are none.
func (d *Detector) weighing(slot int) *weighing {
	i, found := slices.BinarySearchFunc(d.weighed, slot, func(w weighing, slot int) int { return cmp.Compare(w.slot, slot) })
	if !found {
		return nil
	}
	return &d.weighed[i]
}

// Relief, a share of the victim's excess cost: least part that must disappear while one of
// its antagonists is limited. Chosen as in design 0009.
const Relief = 1.0 / 6

// limitFailed reports whether limiting a suspect, in the rows, did not help: it compares the victim's
// cost under the hold, without the first interval of each hold, with its cost in bad intervals without
// a hold. A hold that began with another task's says nothing of it alone (Params.Groups).
func (d *Detector) limitFailed(s *series, victim, suspect int) bool {
	if !d.limits || suspect >= s.columns {
		return false
	}
	var sum, n [2]float64 // bad without hold; under the hold
	together := false     // the hold is of a group
	for i, r := range s.rows {
		c, is := r.cause[victim], 0
		switch {
		case limitBegins(s.rows, i, suspect):
			together = d.params.Groups && othersBegin(s.rows, i, suspect)
			continue
		case r.cause[suspect] == limited && together:
			continue
		case r.cause[suspect] == limited && (c == good || c == byNeighbour):
			is = 1
		case c != byNeighbour:
			continue
		}
		sum[is], n[is] = sum[is]+float64(r.cost[victim]), n[is]+1
	}
	if n[0] == 0 || n[1] == 0 {
		return false
	}
	bad, under := sum[0]/n[0], sum[1]/n[1]
	return bad-under < Relief*(bad-s.tasks[victim].spec.Mean)
}

// exclude finds the tasks that cannot hurt the victim, and whether any task was limited.
func (d *Detector) exclude(s *series, victim int) {
	d.limits = slices.ContainsFunc(s.rows, (*row).anyLimited)
	d.excluded = d.excluded[:0]
	clear(d.served)
	s.tasks[victim].accounts.everServed(d.served)
	for i := range s.tasks {
		d.excluded = append(d.excluded, d.exclusion(s, victim, i))
	}
}

// exclusion returns why a task cannot hurt the victim at any usage; "" if it can.
func (d *Detector) exclusion(s *series, victim, suspect int) string {
	v, t := &s.tasks[victim], &s.tasks[suspect]
	switch {
	case t.task.Contains(&v.task):
		return "contains the victim"
	case v.task.Contains(&t.task):
		return "is part of the victim"
	case d.params.Switches.Reach && v.reach != nil && t.reach != nil && !t.reach.Intersects(v.reach) && !d.served[t.task.Key]:
		return "shares no " + string(s.signal.Domain) + " with the victim"
	}
	return ""
}

func zeroed(s []float64, n int) []float64 {
	if cap(s) < n {
		return make([]float64, n, n+n/4)
	}
	s = s[:n]
	clear(s)
	return s
}

// meanBadUsage returns the suspect's mean usage over the victim's bad intervals.
func (d *Detector) meanBadUsage(victim, suspect int) float64 {
	var sum float64
	n := 0
	for _, p := range d.pairs {
		if p.row.cause[victim] == byNeighbour {
			sum, n = sum+float64(p.row.usage(suspect)), n+1
		}
	}
	return sum / float64(max(n, 1))
}

// coVictim reports whether the suspect was itself over its threshold in at
// least half of the intervals that were bad for the victim.
func (d *Detector) coVictim(victim, suspect int) bool {
	bad, both := 0, 0
	for _, p := range d.pairs {
		if p.row.cause[victim] == byNeighbour {
			bad++
			if p.row.causeOf(suspect) == byNeighbour {
				both++
			}
		}
	}
	return both > 0 && 2*both >= bad
}

// keep inserts c into a ranked list of at most Params.Top.
func (d *Detector) keep(s *series, list []candidate, c candidate) []candidate {
	i := len(list)
	if i == d.params.Top && (i == 0 || !s.before(&c, &list[i-1])) {
		return list
	}
	for i > 0 && s.before(&c, &list[i-1]) {
		i--
	}
	list = slices.Insert(list, i, c)
	return list[:min(len(list), d.params.Top)]
}

// before is the order of suspects. Names decide last, so that the result does not depend on
// the order of readings.
func (s *series) before(a, b *candidate) bool {
	if a.rank != b.rank {
		return a.rank < b.rank
	}
	if a.grounds.Level != b.grounds.Level {
		return a.grounds.Level > b.grounds.Level
	}
	if x, y := a.grounds.figure(), b.grounds.figure(); x != y {
		return x > y
	}
	if a.correlation != b.correlation {
		return a.correlation > b.correlation
	}
	if a.usage != b.usage {
		return a.usage > b.usage
	}
	x, y := &s.tasks[a.slot].task, &s.tasks[b.slot].task
	return cmp.Or(cmp.Compare(x.Name, y.Name), x.Key.Compare(y.Key)) < 0
}

// describe converts the ranked candidates to suspects, in the detector's buffer.
func (d *Detector) describe(s *series) []Suspect {
	d.out = d.out[:0]
	for _, list := range [2][]candidate{d.top, d.bottom} {
		for _, c := range list {
			g := c.grounds
			if w := d.weighing(c.slot); w != nil && g.Basis == ByStatistics && g.Level > None && g.Why == "" {
				g.Why = w.why()
			}
			d.out = append(d.out, Suspect{Task: s.tasks[c.slot].task, Grounds: g, Correlation: c.correlation, Usage: c.usage,
				CoVictim: c.rank == 1, Excluded: c.excluded})
		}
	}
	return d.out
}
