package plan

import "github.com/quell-dev/quell/internal/core/sample"

// Review ends the cap on a task that may not be capped as it is now: a task that is spared came
// into its cgroup, or an operator protects one there.
func (p *Planner) Review(now sample.Millis, t sample.Task) {
	c := p.capOf(t.Key)
	if c == nil {
		return
	}
	if why := noCapReason(t); why != "" {
		p.lift(now, c.ID, "it may not be capped: "+why, "")
	}
}
