package plan

import "github.com/quell-dev/quell/internal/core/sample"

// Review ends the caps that may not be as a task is now. The cap on it: a task that is spared came into
// its cgroup, or an operator protects one there. quell's caps for it: no task may be capped for it any
// more.
func (p *Planner) Review(now sample.Millis, t sample.Task) {
	if c, why := p.capOf(t.Key), noCapReason(t); c != nil && why != "" {
		p.lift(now, c.ID, "it may not be capped: "+why, "")
	}
	why := noHelpReason(t)
	if why == "" || len(p.victims[t.Key]) == 0 {
		return
	}
	for _, c := range p.Caps() {
		if c.incident != nil && c.Victim == t.Key && c.By == auto {
			p.lift(now, c.ID, why, "")
		}
	}
}
