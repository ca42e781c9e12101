package sim

import "math"

// Relief is the cost and the benefit of caps. Trials do not count.
type Relief struct {
	// Taken is the CPU time that caps prevented antagonists from using, in seconds,
	// TakenOfOthers the same of innocents. 0 if a task's pressure is not CPU time (io,
	// net).
	Taken         float64 `json:"taken_cpu_s"`
	TakenOfOthers float64 `json:"taken_of_others_cpu_s"`
	// Held is the number of victims' minutes in which capped antagonists would have put
	// them over the paper's threshold, without noise; Well the number of those below it.
	Held int `json:"held_minutes"`
	Well int `json:"well_minutes"`
	// Victims is the number of victims with such minutes; Saved of them were well in most.
	Victims  int `json:"helped"`
	Relieved int `json:"saved"`
}

// Add adds the relief of another case.
func (r *Relief) Add(o *Relief) {
	r.Taken, r.TakenOfOthers = r.Taken+o.Taken, r.TakenOfOthers+o.TakenOfOthers
	r.Held, r.Well, r.Victims, r.Relieved = r.Held+o.Held, r.Well+o.Well, r.Victims+o.Victims, r.Relieved+o.Relieved
}

// minutes counts a victim's minutes under caps: those in which it would have suffered, and
// those of them in which it did not.
type minutes struct{ held, well int }

// relieve counts the minute just played.
func (g *caseRun) relieve() {
	back := 0.0 // load that caps prevented
	for i := range g.tasks {
		t := &g.tasks[i]
		if t.gone || t.trial || math.IsInf(t.capped, 1) {
			continue
		}
		kept := t.wanted - t.demand
		if t.antagonist {
			back += t.weight * kept
		}
		switch {
		case g.countsOperations():
		case t.antagonist:
			g.result.Relief.Taken += kept * minute.Seconds()
		default:
			g.result.Relief.TakenOfOthers += kept * minute.Seconds()
		}
	}
	if back == 0 {
		return
	}
	stress := g.stress(g.load+back) - g.usual
	for i, n := range g.victim {
		t := &g.tasks[i]
		if n < 0 || t.mean*max(0.8, 1+t.sensitivity*stress) <= t.threshold {
			continue
		}
		for len(g.under) <= n {
			g.under = append(g.under, minutes{})
		}
		g.under[n].held++
		if t.expected <= t.threshold {
			g.under[n].well++
		}
	}
}

// relief sums over the victims.
func (g *caseRun) relief() {
	r := &g.result.Relief
	for _, u := range g.under {
		if u.held == 0 {
			continue
		}
		r.Victims++
		r.Held += u.held
		r.Well += u.well
		if 2*u.well > u.held {
			r.Relieved++
		}
	}
}
