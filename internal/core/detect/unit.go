package detect

import (
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
)

// unit is the time that a task takes for a unit of its own work, as far as CPUs matter: the
// CPU time of the unit and the wait for a CPU that comes with it. Two CPUs that share a
// core are each slower while the other works, so a task that waits for one of them runs
// faster on it, and may do as much work as without the wait.
type unit struct {
	usual, spread float64 // recent mean and variance, in intervals without long waits
	calm          int     // number of those intervals
	now           float64 // mean since waits are long
	long          int     // number of intervals since then
}

const (
	// unitOver is the number of intervals that count as recent.
	unitOver = recentIntervals
	// Ratio: least increase of the time for a unit of work that is harm. Not stated.
	minSlowdown = 0.05
	// Standard errors of the mean: the same. Not stated.
	minSlowdownErrors = 2
)

// unharmed adds an interval: how long a task waited for a CPU, in seconds for each that it
// ran, and the CPU time of a unit of its own work (0: not known). It reports whether the
// wait is over the threshold and the task's units take no longer than usual.
func (u *unit) unharmed(waited, took, limit float64) bool {
	if took == 0 {
		return false
	}
	long := (1 + waited) * took
	if waited <= limit {
		u.calm++
		share := 1 / float64(min(u.calm, unitOver))
		diff := long - u.usual
		u.usual += share * diff
		u.spread += share * ((1-share)*diff*diff - u.spread)
		u.now, u.long = 0, 0
		return false
	}
	u.long++
	n := float64(min(u.long, unitOver))
	u.now += (long - u.now) / n
	return u.calm >= unitOver && u.now <= u.usual+max(minSlowdown*u.usual, minSlowdownErrors*math.Sqrt(u.spread/n))
}

// unitOf returns the CPU time of a unit of a task's own work in the interval that ended at
// the given time, 0 if not counted.
func (d *Detector) unitOf(k sample.TaskKey, at sample.Millis) float64 {
	s := d.work
	if s == nil || s.rows[len(s.rows)-1].at != at {
		return 0
	}
	if slot, ok := s.index[k]; ok {
		return float64(s.rows[len(s.rows)-1].costOf(slot))
	}
	return 0
}
