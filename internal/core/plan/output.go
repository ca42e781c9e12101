package plan

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Output is the result of the calls since the last Take: actions to carry out in order,
// incidents to record in their current state, ordered by their last change, and whether
// the list of offenders is to be stored.
type Output struct {
	Actions   []Action
	Incidents []Incident
	Offenders bool
}

// changed marks an incident to be recorded. One that is closed is final, and its chart is gone.
func (p *Planner) changed(inc *incident, now sample.Millis) {
	if inc == nil || inc.Closed != 0 {
		return
	}
	inc.Updated = now
	p.changes++
	if inc.change == 0 {
		p.dirty = append(p.dirty, inc)
	}
	inc.change = p.changes
}

// Pending reports whether Take has something to return.
func (p *Planner) Pending() bool { return len(p.actions) > 0 || len(p.dirty) > 0 || p.offended }

// Take returns the results of the calls since it was last called. While there are actions
// it returns only those. The results of actions belong to the incidents, which are
// returned once, in their state after the actions.
func (p *Planner) Take() Output {
	if len(p.actions) > 0 {
		out := Output{Actions: p.actions}
		p.actions = nil
		return out
	}
	out := Output{Offenders: p.offended}
	slices.SortFunc(p.dirty, func(a, b *incident) int { return cmp.Compare(a.change, b.change) })
	for _, inc := range p.dirty {
		inc.change = 0
		out.Incidents = append(out.Incidents, inc.value())
	}
	clear(p.dirty)
	p.dirty, p.offended = p.dirty[:0], false
	return out
}
