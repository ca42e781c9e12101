package detect

import "github.com/quell-dev/quell/internal/core/sample"

// Accusable is a suspect that Params.Select may select.
type Accusable struct {
	Task sample.Task
	// Usage is its total pressure over the window's pairs, BadUsage its mean pressure over
	// the victim's bad intervals, both in the signal's unit.
	Usage, BadUsage float64
	// Rise is the increase of its mean pressure from good intervals to bad ones; the mean
	// over no intervals is 0.
	Rise float64
}

// selectSuspect returns the slot of the suspect that Params.Select selects, −1 for none.
func (d *Detector) selectSuspect(s *series, victim int) int {
	if d.params.Select == nil {
		return -1
	}
	var all []Accusable
	var slots []int
	for i := range s.tasks {
		t := &s.tasks[i]
		if i == victim || !t.used || t.flags&sample.Capped != 0 || d.excluded[i] != "" {
			continue
		}
		if d.den[i] > 0 && d.num[i]/d.den[i] >= d.params.Correlation {
			return -1
		}
		u := d.shift(victim, func(r *row) float64 { return float64(r.usage(i)) })
		all = append(all, Accusable{Task: t.task, Usage: d.den[i], BadUsage: d.meanBadUsage(victim, i), Rise: u.bad - u.good})
		slots = append(slots, i)
	}
	if k := d.params.Select(all); k >= 0 {
		return slots[k]
	}
	return -1
}
