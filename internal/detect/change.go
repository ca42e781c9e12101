package detect

import (
	"math"
	"slices"
)

// Change is what a task that suffers changed of itself.
type Change string

// The changes of a task's own, in the order in which they are looked for.
const (
	// MoreWork: it did more work in the intervals that cost more. Interference
	// makes a task do the same work or less.
	MoreWork Change = "more-work"
	// LessCPU: it cost more where it used less CPU, and nobody used more
	// instead (CPI², section 6.1, case 3: bimodal usage). Of signals by CPU only.
	LessCPU Change = "less-cpu"
	// NewLevel: its cost went to another level and stayed there, and nobody
	// used more since.
	NewLevel Change = "new-level"
)

const (
	// likely and sure are how many standard errors a difference must be to
	// count for who might be the one, and to count against who is accused.
	likely, sure = 2, 3
	// moreWork and lessCPU are how much more work and how much less usage, by
	// ratio, are a change and no accident.
	moreWork, lessCPU = 1.25, 1 / 1.25
	// lasting is how many bad intervals in a row, without a good one since,
	// are a new level: more than what makes an anomaly.
	lasting = 5
)

// shift is how something differs between the victim's bad and good intervals:
// their means, and the standard error of the difference with the variance
// pooled (Student's two-sample comparison).
type shift struct{ good, bad, err float64 }

func (s shift) up(errors float64) bool   { return s.bad-s.good > errors*s.err }
func (s shift) down(errors float64) bool { return s.good-s.bad > errors*s.err }

// shift compares what of says of each of the victim's pairs.
func (d *Detector) shift(victim int, of func(*row) float64) shift {
	var n, mean, dev [2]float64
	for i := range d.pairs {
		r := d.pairs[i].row
		side := 0
		if r.cause[victim] == byNeighbour {
			side = 1
		}
		// Welford's update keeps small differences of large numbers.
		x := of(r)
		n[side]++
		delta := x - mean[side]
		mean[side] += delta / n[side]
		dev[side] += delta * (x - mean[side])
	}
	s := shift{mean[0], mean[1], math.Inf(1)}
	if free := n[0] + n[1] - 2; n[0] > 0 && n[1] > 0 && free > 0 {
		s.err = math.Sqrt((dev[0] + dev[1]) / free * (1/n[0] + 1/n[1]))
	}
	return s
}

// moved reports whether a task used more when the victim was bad: by so many
// standard errors, and by at least what a cap would take from it.
func (d *Detector) moved(s *series, victim, suspect int, errors float64) bool {
	u := d.shift(victim, func(r *row) float64 { return float64(r.pressure[suspect]) })
	return u.up(errors) && u.bad-u.good >= d.leastPressure(s)
}

// leastPressure is what counts as used, in the unit of the signal's pressure.
func (d *Detector) leastPressure(s *series) float64 {
	if least := s.signal.LeastPressure; least > 0 {
		return least
	}
	return d.params.LeastPressure
}

// wasHeld reports whether quell held a task down in one of the pairs.
func (d *Detector) wasHeld(task int) bool {
	return slices.ContainsFunc(d.pairs, func(p pair) bool { return p.row.cause[task] == held })
}

// moreWork reports whether the victim did more work when it was bad. Work is
// usage ÷ cost where the cost is resource per unit of work; where it is a wait,
// work is what it used (Signal.PerWork).
func (d *Detector) moreWork(s *series, victim int) bool {
	w := d.shift(victim, func(r *row) float64 {
		work := float64(r.pressure[victim])
		if s.signal.PerWork {
			work /= float64(r.cost[victim])
		}
		return work
	})
	return w.up(likely) && w.bad >= moreWork*w.good
}

// change looks for a change of the victim's own where no suspect is accused;
// "" if there is none.
func (d *Detector) change(s *series, victim int) Change {
	u := d.shift(victim, func(r *row) float64 { return float64(r.pressure[victim]) })
	// Whose requests take longer makes fewer of them, whoever is behind it.
	fell := s.signal.Domain.OfCPUs() && u.down(likely) && u.bad <= lessCPU*u.good
	run := 0
	for _, p := range d.pairs {
		if run++; p.row.cause[victim] != byNeighbour {
			run = 0
		}
	}
	if !fell && run < lasting {
		return ""
	}
	// Somebody who moved may be the one although the correlation is too low to
	// accuse, as it is wherever the cost is less than 1.5 times the threshold.
	// Of somebody whom quell held down it is not known what would have been, but for
	// those of whom the hold has shown that it was not them.
	for i := range s.tasks {
		if d.params.Switches.Evidence && d.denied(s, victim, i) {
			continue
		}
		if i != victim && s.tasks[i].used && d.unable(s, victim, i) == "" && (d.moved(s, victim, i, likely) || d.wasHeld(i)) {
			return ""
		}
	}
	if fell {
		return LessCPU
	}
	return NewLevel
}
