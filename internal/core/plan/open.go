package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Open lists the open incidents, oldest first.
func (p *Planner) Open() []Incident {
	all := make([]Incident, 0, len(p.open))
	for _, inc := range p.inOrder() {
		all = append(all, inc.value())
	}
	return all
}

// Incident returns the open incident with an ID.
func (p *Planner) Incident(id string) (Incident, bool) {
	if inc := p.find(id); inc != nil {
		return inc.value(), true
	}
	return Incident{}, false
}

// IsOpen reports whether the incident with an ID is open.
func (p *Planner) IsOpen(id string) bool { return p.find(id) != nil }

func (p *Planner) find(id string) *incident { return p.ids[id] }

// OpenCount is the number of open incidents.
func (p *Planner) OpenCount() int { return len(p.open) }

// inOrder lists the open incidents, oldest first. The list is valid until the next call.
func (p *Planner) inOrder() []*incident {
	p.ordered = p.ordered[:0]
	for _, inc := range p.open {
		p.ordered = append(p.ordered, inc)
	}
	slices.SortFunc(p.ordered, func(a, b *incident) int { return cmp.Compare(a.ID, b.ID) })
	return p.ordered
}

func (p *Planner) close(now sample.Millis, inc *incident) {
	delete(p.open, inc.key)
	delete(p.ids, inc.ID)
	k := inc.Victim.Key
	p.victims[k] = slices.DeleteFunc(p.victims[k], func(x *incident) bool { return x == inc })
	if len(p.victims[k]) == 0 {
		delete(p.victims, k)
	}
	p.changed(inc, now)
	inc.Closed = now
}

// InIncident reports whether the task is the victim of an open incident of the signal
// that a neighbour may have caused.
func (p *Planner) InIncident(sig sample.SignalName, k sample.TaskKey) bool {
	return p.neighbours(sig, k) != nil
}

// Suffers reports whether the task is the victim of an open incident of the signal that was opened for
// a finding of this kind.
func (p *Planner) Suffers(sig sample.SignalName, k sample.TaskKey, kind detect.Kind) bool {
	return len(p.victims[k]) > 0 && p.open[keyOf(sig, k, kind)] != nil
}

// unnamedSettle is how long an incident may last that found no good interval when it began, and has named no task,
// until the cost is learnt as normal: the job may have changed before, as with a release. Not measured.
const unnamedSettle = 6 * time.Hour

// follow decides whether the victim's cost is to be learnt as normal. untold: no good interval tells of a neighbour.
func (p *Planner) follow(now sample.Millis, inc *incident, untold bool) {
	settle, changed := p.policy.Settle, inc.conclusive == detect.PhaseChange
	if untold && inc.allBad && inc.conclusive == detect.Nobody && len(inc.named) == 0 {
		settle, changed = max(settle, unnamedSettle), true
	}
	if inc.Follows = changed && now.Sub(inc.Began) >= settle; inc.Follows && inc.latest.Kind == inc.conclusive {
		inc.latest.Reason += fmt.Sprintf("; that has lasted %s, so the spec adapts to it", settle)
	}
}

// Follows reports whether the task's current cost is to be learnt as normal (follow).
func (p *Planner) Follows(sig sample.SignalName, k sample.TaskKey) bool {
	inc := p.neighbours(sig, k)
	return inc != nil && inc.Follows
}

// neighbours is the victim's open incident that a neighbour may have caused. It is called
// for each sample, of tasks that are usually not victims.
func (p *Planner) neighbours(sig sample.SignalName, k sample.TaskKey) *incident {
	if len(p.victims[k]) == 0 {
		return nil
	}
	return p.open[keyOf(sig, k, detect.Neighbour)]
}
