package detect

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// naiveStatistics computes the statistics as they are defined, suspect by suspect, without
// anything that is kept between suspects. Its sums are in another order than the detector's, so
// the results are equal but for rounding.
func naiveStatistics(d *Detector, s *series, victim int) []SuspectStatistics {
	limit := s.tasks[victim].limit
	if !(limit > 0) {
		return nil
	}
	var y, weight []float64
	var good, now []bool
	add := func(cost, k float64, fresh bool) {
		v := math.Log(cost / limit)
		if math.IsInf(v, 0) || math.IsNaN(v) {
			v = -maxLogCost
		}
		y, weight = append(y, min(max(v, -maxLogCost), maxLogCost)), append(weight, k)
		good, now = append(good, v <= 0), append(now, fresh && v > 0)
	}
	for b := range s.memory.blocks {
		if victim < len(b.counted) && b.counted[victim] > 0 {
			add(float64(b.cost[victim]), float64(b.counted[victim]), false)
		}
	}
	whole := len(y)
	newest := s.rows[len(s.rows)-1].at
	for _, r := range s.rows {
		if r.cause[victim].counted() {
			add(float64(r.cost[victim]), 1, newest.Sub(r.at) < d.params.OutlierWindow)
		}
	}
	ngood := 0.0
	for i := range good {
		if good[i] {
			ngood += weight[i]
		}
	}
	if len(y) < minIntervals || ngood < float64(d.params.Outliers) || !slices.Contains(now, true) {
		return nil
	}
	steps := func(x []float64) (all []float64) {
		for i := stepIntervals; i+stepIntervals <= len(x); i++ {
			sum := func(n int) (total float64) {
				for _, v := range x[:n] {
					total += v
				}
				return total
			}
			all = append(all, (sum(i+stepIntervals)-2*sum(i)+sum(i-stepIntervals))/stepIntervals)
		}
		return all
	}
	onset := -1
	if all := steps(y[whole:]); len(all) > 0 {
		onset = slices.Index(all, slices.Max(all))
	}
	t := &statisticsBuffers{good: good, weight: weight}
	once := t.once()
	rises := 0.0
	var out []SuspectStatistics
	for slot := range s.tasks {
		if slot == victim || !s.tasks[slot].used || d.exclusion(s, victim, slot) != "" {
			continue
		}
		x, own := naiveSeries(d, s, victim, slot)
		if slices.Max(x) == 0 {
			continue
		}
		w := SuspectStatistics{Task: s.tasks[slot].task, Mild: s.tasks[victim].mild, Once: once, Good: ngood}
		part := slices.Clone(weight)
		if s.signal.PerWork && slices.Max(own) > 0 {
			naiveWork(x, own, weight, part, now, whole)
			t.own, t.now = own, now
			var counted bool
			if w.Own, counted = t.ownRatio(); counted {
				t.costs = append(t.costs, w.Own)
			}
		}
		var n, mx, my, gx, gn, bx, bn float64
		for i, k := range part {
			n, mx, my = n+k, mx+k*x[i], my+k*y[i]
			if good[i] {
				gx, gn = gx+k*x[i], gn+k
			}
			if now[i] {
				bx, bn = bx+x[i], bn+1
			}
		}
		if gn == 0 || bn == 0 {
			continue
		}
		mx, my, gx, bx = mx/n, my/n, gx/gn, bx/bn
		var xx, yy, xy, lagx, lagy float64
		for i, k := range part {
			dx, dy := x[i]-mx, y[i]-my
			xx, yy, xy = xx+k*dx*dx, yy+k*dy*dy, xy+k*dx*dy
			if i > 0 {
				lagx += math.Sqrt(k*part[i-1]) * dx * (x[i-1] - mx)
				lagy += math.Sqrt(k*part[i-1]) * dy * (y[i-1] - my)
			}
		}
		if !(xx > n*constantTolerance*constantTolerance*mx*mx) || yy <= 0 {
			continue
		}
		w.Correlation = xy / math.Sqrt(xx*yy)
		f := max(0, lagx/xx) * max(0, lagy/yy)
		w.Intervals = min(n*(1-f)/(1+f), 2+float64(naiveLevelChanges(x)))
		w.WorkRatio, w.Share = bx/max(gx, 1e-9), max(0, bx-gx)
		if bx > gx {
			bad, up, run := 0.0, 0.0, 0
			for i := len(x) - 1; i >= whole && run < recoveryIntervals; i-- {
				if run++; good[i] {
					continue
				}
				run = 0
				if bad++; x[i] > (gx+bx)/2 {
					up++
				}
			}
			w.Cover = up / max(bad, 1)
		}
		if all := steps(x[whole:]); onset >= 0 {
			most, smaller := 0.0, 0
			for i := max(0, onset-1); i < min(len(all), onset+2); i++ {
				most = max(most, math.Abs(all[i]))
			}
			for _, v := range all {
				if math.Abs(v) < most {
					smaller++
				}
			}
			w.Step = float64(smaller) / float64(len(all))
		}
		rises += w.Share
		out = append(out, w)
	}
	slices.Sort(t.costs)
	first, second := math.Inf(-1), math.Inf(-1)
	for i := range out {
		w := &out[i]
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
	for i := range out {
		w := &out[i]
		switch {
		case len(out) == 1:
			w.Lead = 1
		case w.Score == first:
			w.Lead = min(first-second, 1)
		default:
			w.Lead = max(w.Score-first, -1)
		}
	}
	return out
}

// naiveSeries returns a suspect's pressure and its own cost, in the victim's intervals.
func naiveSeries(d *Detector, s *series, victim, slot int) (x, own []float64) {
	for b := range s.memory.blocks {
		if victim < len(b.counted) && b.counted[victim] > 0 {
			u, c := 0.0, 0.0
			if slot < len(b.pressure) {
				u, c = float64(b.pressure[slot]), float64(b.cost[slot])
			}
			x, own = append(x, u), append(own, c)
		}
	}
	counts := func(s *series, slot int) bool {
		return slices.ContainsFunc(s.rows, func(r *row) bool { return r.ownCost(slot) > 0 })
	}
	var from *series
	column := slot
	if counts(s, slot) {
		from = s
	} else {
		for _, name := range [...]sample.SignalName{sample.CPI, sample.CPT, sample.CPS} {
			o := d.series[name]
			if o == nil || o == s || from != nil {
				continue
			}
			if i, ok := o.index[s.tasks[slot].task.Key]; ok && counts(o, i) {
				from, column = o, i
			}
		}
	}
	for _, r := range s.rows {
		if !r.cause[victim].counted() {
			continue
		}
		c := 0.0
		if from != nil {
			if k := slices.IndexFunc(from.rows, func(o *row) bool { return o.at == r.at }); k >= 0 {
				c = from.rows[k].ownCost(column)
			}
		}
		x, own = append(x, float64(r.usage(slot))), append(own, c)
	}
	return x, own
}

// naiveWork divides a suspect's pressure by its own cost, and gives part 0 to what is no
// evidence on its present work.
func naiveWork(x, own, weight, part []float64, now []bool, whole int) {
	var sum, n, cost, did, fresh float64
	for i, c := range own {
		if c > 0 {
			sum, n = sum+c*weight[i], n+weight[i]
		}
		if c > 0 && now[i] {
			cost, did, fresh = cost+c, did+x[i], fresh+1
		}
	}
	for i, c := range own {
		if fresh > 0 && c > 0 && x[i] > did/fresh/2 && (c > cost/fresh*otherWorkRatio || c*otherWorkRatio < cost/fresh) {
			part[i] = 0
		}
		if i < whole && slices.Max(own[:whole]) == 0 && x[i] > 0 {
			part[i] = 0
		}
	}
	for i, c := range own {
		if c > 0 {
			x[i] *= sum / n / c
		}
	}
}

// naiveLevelChanges is levelChanges with branches.
func naiveLevelChanges(u []float64) (count int) {
	middle := (slices.Min(u) + slices.Max(u)) / 2
	side := u[0] > middle
	for i := 1; i < len(u); i++ {
		if now := u[i] > middle; now != side && (i+1 == len(u) || (u[i+1] > middle) == now) {
			side = now
			count++
		}
	}
	return count
}

func TestLevelChangesAreCounted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 19))
	for range 20_000 {
		u := make([]float64, 1+rng.IntN(12))
		for i := range u {
			u[i] = float64(rng.IntN(3)) - 1
		}
		if got, want := levelChanges(u), naiveLevelChanges(u); got != want {
			t.Fatalf("%v: %d, want %d", u, got, want)
		}
	}
}

// sameButForRounding compares statistics whose sums were made in another order.
func sameButForRounding(got, want SuspectStatistics) bool {
	for _, p := range [...][2]*float64{{&got.Correlation, &want.Correlation}, {&got.Intervals, &want.Intervals}, {&got.Share, &want.Share}, {&got.WorkRatio, &want.WorkRatio},
		{&got.Score, &want.Score}, {&got.Lead, &want.Lead}} {
		if math.Abs(*p[0]-*p[1]) <= 1e-9*max(1, math.Abs(*p[1])) {
			*p[0] = *p[1]
		}
	}
	return got == want
}

// TestStatisticsAreTheNaiveOnes: over random machines of an hour to ten, whose tasks begin, end,
// restart, sleep, are limited, and have costs of their own by this signal, by another, or not at
// all, the statistics of every suspect are those of the definition.
func TestStatisticsAreTheNaiveOnes(t *testing.T) {
	compared, apart, blocks, none, late := 0, 0, 0, 0, 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 19))
		p := evident(t)
		d, sig, other := New(p), signal(t, sample.CPI), signal(t, sample.CPS)
		const tasks = 8
		kind := make([]int, tasks)
		for i := range kind {
			kind[i] = rng.IntN(4)
		}
		intervals := 20 + rng.IntN(600)/(1+rng.IntN(8))
		for m := range intervals {
			at := sample.Millis(m+1) * minute
			noise := func() float64 { return 1 + 0.05*rng.NormFloat64() }
			loud := m%17 < 6 && m > 10
			row := []Reading{victim(1, pick(loud, 1.7, 1)*noise()).with(func(r *Reading) { r.Spec = ready(1, 0.1) })}
			var counted []Reading
			for i := range tasks {
				inode := uint64(i + 2)
				if i == 3 && m%90 > 70 {
					d.Forget(sample.TaskKey{Inode: inode})
					continue
				}
				r := suspect(inode, pick(loud == (i%2 == 0), 1, 0.2)*noise())
				if rng.IntN(10) == 0 || kind[i] == 3 {
					r.Pressure = 0
				}
				if rng.IntN(40) == 0 {
					r.Flags = sample.Capped
				}
				if rng.IntN(200) == 0 {
					r.Flags |= sample.Restarted
				}
				cost := pick(rng.IntN(3) == 0, 3, 1) * noise()
				switch {
				case kind[i] == 1 && rng.IntN(8) > 0:
					r.Cost = cost
				case kind[i] == 2:
					o := r
					o.Cost = cost * 1e-6
					counted = append(counted, o)
				}
				row = append(row, r)
			}
			if m%5 > 0 {
				d.Observe(other, at, counted)
			}
			d.Observe(sig, at, row)
			if m < intervals-1 && rng.IntN(10) > 0 {
				continue
			}
			s := d.series[sig.Name]
			v := s.index[sample.TaskKey{Inode: 1}]
			d.exclude(s, v)
			want := naiveStatistics(d, s, v)
			var got []SuspectStatistics
			for _, explain := range []bool{false, true} {
				d.params.Explain = explain
				got = got[:0]
				all := d.statistics(s, v)
				for i := range all {
					w := &all[i]
					most := d.scales.mostLogOdds(w, math.Inf(-1))
					if loose := d.scales.mostLogOdds(w, math.Inf(1)); loose < most {
						t.Fatalf("seed %d, interval %d: log-odds %v, loosely %v", seed, m, most, loose)
					}
					if !w.complete {
						late++
					}
					d.scales.settle(s, w)
					if p := w.Probability(); !(p <= 1/(1+math.Exp(-most))) {
						t.Fatalf("seed %d, interval %d: probability %v over its bound, log-odds %v: %+v", seed, m, p, most, w)
					}
					w.Task = s.tasks[w.slot].task
					got = append(got, w.SuspectStatistics)
				}
				if !slices.EqualFunc(got, want, sameButForRounding) {
					t.Fatalf("seed %d, interval %d:\n%+v\nnaive\n%+v", seed, m, got, want)
				}
			}
			// What is not completed makes no difference to a finding.
			a := anomaly{signal: s, victim: sample.TaskKey{Inode: 1}, kind: Neighbour, at: at}
			d.params.Top = 1 + int(seed%4)
			text := [2]string{}
			for i, explain := range []bool{true, false} {
				d.params.Explain = explain
				f := d.analyse(a, v)
				f.Statistics = nil
				text[i] = fmt.Sprintf("%+v", f)
			}
			if text[0] != text[1] {
				t.Fatalf("seed %d, interval %d:\n%s\nwithout completing all\n%s", seed, m, text[0], text[1])
			}
			compared += len(got)
			if d.scales.whole > 0 {
				blocks++
			}
			if len(got) == 0 {
				none++
			}
			for i := range d.scales.part {
				if d.scales.part[i] == 0 {
					apart++
					break
				}
			}
		}
	}
	if compared < 2_000 || apart < 100 || blocks < 50 || none == 0 || late < compared/10 {
		t.Errorf("compared %d suspects, %d moments with work apart, %d with blocks, %d without statistics, %d completed late", compared, apart, blocks, none, late)
	}
}
