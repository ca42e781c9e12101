package detect

import (
	"math"
	"slices"
)

// Change is what changed in a task that suffers.
type Change string

// The changes of the task itself, in the order in which they are looked for.
const (
	// MoreWork: it did more work in the intervals that cost more. Interference
	// makes a task do the same work or less.
	MoreWork Change = "more-work"
	// LessCPU: it cost more where it used less CPU, and no other task used more instead
	// (CPI², section 6.1, case 3: bimodal usage). Only for signals of CPUs.
	LessCPU Change = "less-cpu"
	// NewLevel: its cost changed to another level and stayed there, and no other task used more since.
	NewLevel Change = "new-level"
)

// Constants of changes: unit, meaning, and how each was chosen (docs/design/0004).
const (
	// Standard errors: least difference of usage or work that counts. Design 0004; the
	// reason for the number is not stated.
	candidateErrors = 2
	// Standard errors: least difference of usage that confirms an accused suspect. As above.
	confirmErrors = 3
	// Ratio: least work in bad intervals to that in good ones that is a change and not
	// chance. Not stated.
	moreWorkRatio = 1.25
	// Ratio: most usage in bad intervals to that in good ones that is a change: at least a
	// fifth less. Not stated.
	lessCPURatio = 1 / 1.25
	// Intervals: consecutive bad ones, up to the newest, that make a new level. More than
	// what makes an anomaly (3).
	newLevelIntervals = 5
)

// shift is the difference of a quantity between the victim's bad and good intervals: the two means, and
// the standard error of their difference with pooled variance (Student's two-sample comparison).
type shift struct{ good, bad, err float64 }

func (s shift) up(errors float64) bool   { return s.bad-s.good > errors*s.err }
func (s shift) down(errors float64) bool { return s.good-s.bad > errors*s.err }

// shift compares the values of the function of over the victim's pairs.
func (d *Detector) shift(victim int, of func(*row) float64) shift {
	var n, mean, dev [2]float64
	for i := range d.pairs {
		r := d.pairs[i].row
		side := 0
		if r.cause[victim] == byNeighbour {
			side = 1
		}
		// Welford's update is accurate for small differences of large numbers.
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

// moved reports whether a task used more when the victim was bad: by the given number of
// standard errors, and by at least the signal's least pressure.
func (d *Detector) moved(s *series, victim, suspect int, errors float64) bool {
	u := d.shift(victim, func(r *row) float64 { return float64(r.usage(suspect)) })
	return u.up(errors) && u.bad-u.good >= d.leastPressure(s)
}

// leastPressure is the least usage that counts, in the unit of the signal's pressure.
func (d *Detector) leastPressure(s *series) float64 {
	if least := s.signal.LeastPressure; least > 0 {
		return least
	}
	return d.params.LeastPressure
}

// wasLimited reports whether quell limited a task in some of the pairs: a limit in all of them is no change.
func (d *Detector) wasLimited(task int) bool {
	is := func(p pair) bool { return p.row.causeOf(task) == limited }
	return slices.ContainsFunc(d.pairs, is) && slices.ContainsFunc(d.pairs, func(p pair) bool { return !is(p) })
}

// moreWork reports whether the victim did more work when it was bad. Work is usage ÷ cost if the cost
// is resource per unit of work. If the cost is a wait, work is usage (Signal.PerWork).
func (d *Detector) moreWork(s *series, victim int) bool {
	w := d.shift(victim, func(r *row) float64 {
		work := float64(r.pressure[victim])
		if s.signal.PerWork {
			work /= float64(r.cost[victim])
		}
		return work
	})
	return w.up(candidateErrors) && w.bad >= moreWorkRatio*w.good
}

// change looks for a change of the victim itself if no suspect is accused; "" if there is none.
func (d *Detector) change(s *series, victim int) Change {
	u := d.shift(victim, func(r *row) float64 { return float64(r.pressure[victim]) })
	// A task whose requests take longer makes fewer of them, whatever the cause.
	fell := s.signal.Domain.OfCPUs() && u.down(candidateErrors) && u.bad <= lessCPURatio*u.good
	run := 0
	for _, p := range d.pairs {
		if run++; p.row.cause[victim] != byNeighbour {
			run = 0
		}
	}
	if !fell && run < newLevelIntervals {
		return ""
	}
	// A task that moved may be the antagonist although its correlation is too low to accuse it, which
	// is so at any cost below 1.5 times the threshold. The usage that a limited task would have had is
	// not known. Tasks are left out if limiting them did not help the victim.
	for i := range s.tasks {
		if d.params.Switches.Evidence && d.limitFailed(s, victim, i) {
			continue
		}
		if d.isSuspect(s, victim, i) && d.excluded[i] == "" && (d.moved(s, victim, i, candidateErrors) || d.wasLimited(i)) {
			return ""
		}
	}
	if fell {
		return LessCPU
	}
	return NewLevel
}
