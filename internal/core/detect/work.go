package detect

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// This file makes what the statistics compare: the work of each suspect, from its usage and its
// own cost, and the victim's cost.

// usageSums are the sums over the usage of every task, by slot. They are made interval by
// interval, since the usage of all tasks in one is contiguous in memory.
type usageSums struct {
	all, good, now []float64 // weighted, but for now
	square, cross  []float64 // weighted, of the deviations from the mean: squares, and products with the victim's
}

// sumUsage makes the sums for n slots. Rounding in the squares is 10⁻¹⁵ of the mean's square, far
// below constantTolerance².
func (t *statisticsBuffers) sumUsage(n int) {
	u, v := &t.usage, &t.all
	for _, x := range [...]*[]float64{&u.all, &u.good, &u.now, &u.square, &u.cross} {
		*x = zeroed(*x, n)
	}
	for i, k := range t.weight {
		p, dy := t.pressure(i, n), v.deviation[i]
		sum := u.all[:len(p)] // of the bad intervals
		if t.good[i] {
			sum = u.good[:len(p)]
		}
		square, cross := u.square[:len(p)], u.cross[:len(p)]
		for j, used := range p {
			x := float64(used)
			kx := k * x
			sum[j] += kx
			square[j] += kx * x
			cross[j] += kx * dy
		}
	}
	for j, good := range u.good {
		u.all[j] += good
		u.square[j] -= u.all[j] * u.all[j] / v.n
	}
	for _, i := range t.newest {
		for j, x := range t.pressure(i, n) {
			u.now[j] += float64(x)
		}
	}
}

// pressure returns the usage of the tasks in one of the victim's intervals; tasks that came later
// than a block, and those that only slept, are beyond its end.
func (t *statisticsBuffers) pressure(i, n int) []float32 {
	var p []float32
	if i < t.whole {
		p = t.blocks[i].pressure
	} else {
		p = t.rows[i-t.whole].pressure
	}
	return p[:min(n, len(p))]
}

// correlateUsage is correlate for a suspect whose own cost is not counted: its work is its usage.
func (t *statisticsBuffers) correlateUsage(w *weighing) (changed bool) {
	u, v, i := &t.usage, &t.all, w.slot
	if v.good == 0 {
		return false
	}
	w.mean, w.good, w.now = u.all[i]/v.n, u.good[i]/v.good, u.now[i]/float64(len(t.newest))
	return w.correlation(u.square[i], u.cross[i], v)
}

// gatherWork makes the series of a suspect's work, aligned with the victim's, of its usage and
// its own cost if that was gathered. It returns the parts of its intervals that count, and the
// victim's sums for them.
func (t *statisticsBuffers) gatherWork(slot int) (part []float64, sums *victimSums) {
	t.x = t.x[:0]
	for _, b := range t.blocks {
		u := 0.0
		if slot < len(b.pressure) {
			u = float64(b.pressure[slot])
		}
		t.x = append(t.x, u)
	}
	for _, r := range t.rows {
		t.x = append(t.x, float64(r.pressure[slot]))
	}
	if len(t.own) > 0 && t.divideByOwn() {
		t.sumVictim(&t.apart, t.part)
		return t.part, &t.apart
	}
	return t.weight, &t.all
}

// gatherOwn makes the series of a suspect's own cost; false, and none, if that was never counted.
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
	t.reported = s.signal.SelfReported || other != nil && other.signal.SelfReported
	if other == nil && !counted {
		t.own = t.own[:0]
		return false
	}
	k := 0 // row index in other
	for _, r := range t.rows {
		if other != s {
			for other != nil && k < len(other.rows) && other.rows[k].at < r.at {
				k++
			}
			if other == nil || k == len(other.rows) || other.rows[k].at != r.at {
				t.own = append(t.own, 0)
				continue
			}
			r = other.rows[k]
		}
		c := r.ownCost(column)
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
	usual, most := sum/n, t.mostReported()
	for i, c := range t.own {
		if c > 0 {
			t.x[i] *= usual / min(c, most)
		}
	}
	return apart
}

// mostReported is the highest own cost of a suspect that reduces its work: of what it reports itself
// maxReportedRatio times its mean in the victim's good intervals. It could explain any usage otherwise.
func (t *statisticsBuffers) mostReported() float64 {
	var good, n float64
	for i, c := range t.own {
		if c > 0 && t.good[i] {
			good, n = good+t.weight[i]*c, n+t.weight[i]
		}
	}
	if !t.reported || n == 0 {
		return math.Inf(1)
	}
	return maxReportedRatio * good / n
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
	return t.past != nil && t.counted && t.lastCounted >= s.rows[0].at
}

// ownCost returns a task's cost for a unit of its work, 0 if that was not counted or is not
// reliable. It includes tasks that did too little to be judged: their cost still shows how
// much more CPU time the same work took.
func (r *row) ownCost(slot int) float64 {
	if slot < len(r.cost) && ownCauses>>r.cause[slot]&1 != 0 {
		return float64(r.cost[slot])
	}
	return 0
}

const ownCauses = 1<<good | 1<<byNeighbour | 1<<noSpec | 1<<absent

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
		if c > 0 && (c > cost*otherWorkRatio || c*otherWorkRatio < cost) && t.x[i] > did/2 {
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
	return w.correlation(xx, xy, v)
}

// correlation makes the correlation of the sums of squares and products; false if the work was
// constant.
func (w *weighing) correlation(xx, xy float64, v *victimSums) (changed bool) {
	if !(xx > v.n*constantTolerance*constantTolerance*w.mean*w.mean) || v.square <= 0 {
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

// stepAt returns the sum of the intervals after a point less that of the same number before it.
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
