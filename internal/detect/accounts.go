package detect

import "github.com/quell-dev/quell/internal/sample"

// What the switch Accounts asks of a suspect (docs/design/0005).
const (
	// sole is the least share that it must have of what all those who used more
	// CPU time in the newest bad intervals than in good ones used more.
	sole = 0.9
	// atOnce is how many of a victim's threads may wait for one CPU at once: what
	// a suspect used more must be this part of what the victim waited more.
	atOnce = 4
)

// accounted reports whether CPU time itself says that it was this suspect. A
// run-queue wait is, by definition, time in which somebody else ran, so where
// what runs outside any task is counted too (OutsideName), somebody in the
// books must have run more while the victim waited more, or have moved to where
// it waits. The suspect must be nearly all of those who did, and have used
// enough to make the victim wait so long.
func (d *Detector) accounted(s *series, suspect int) bool {
	if s.signal.Domain != sample.SharedCPU || s.signal.PerWork {
		return false // its cost is no time that others used
	}
	t := &d.bench
	var own, all float64
	outside := false
	for i := range s.tasks {
		k := &s.tasks[i]
		if i == t.victim || !k.used || d.unable(s, t.victim, i) != "" {
			continue
		}
		outside = outside || k.task.Name == OutsideName
		more := t.more(func(r *row) float64 { return float64(r.pressure[i]) })
		if i == suspect {
			own = more
		}
		all += max(0, more)
	}
	waited := t.more(func(r *row) float64 { return float64(r.cost[t.victim]) * float64(r.pressure[t.victim]) })
	return outside && waited > 0 && own >= sole*all && own >= waited/atOnce
}

// more is how much more something was in the newest bad intervals than in the
// good ones, on average.
func (t *bench) more(of func(*row) float64) float64 {
	t.u = t.u[:0]
	for _, r := range t.rows {
		t.u = append(t.u, of(r))
	}
	return t.level(t.u)
}
