package sim

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// span is a period in which one task hurt another.
type span struct{ from, to sample.Millis }

// apart is the distance of two periods, in minutes, above which they are two labels.
const apart = 3

// label records that a victim suffers in this minute, and which antagonists cause it.
func (g *caseRun) label(at sample.Millis, victim int) {
	v := &g.tasks[victim]
	with := g.stress(g.load)
	for _, i := range g.antagonists {
		a := &g.tasks[i]
		if a.gone || v.mean*v.sensitivity*(with-g.stress(g.load-a.weight*a.demand)) < g.least(v) {
			continue
		}
		key := [2]int{victim, i}
		spans := g.spans[key]
		if n := len(spans); n > 0 && at.Sub(spans[n-1].to) <= apart*minute {
			spans[n-1].to = at
		} else {
			g.spans[key] = append(spans, span{at.Add(-minute), at})
		}
	}
}

// labels lists the recorded periods, by time.
func (g *caseRun) labels() []trace.Label {
	var all []trace.Label
	for key, spans := range g.spans {
		for _, s := range spans {
			all = append(all, trace.Label{Machine: g.name, Victim: g.tasks[key[0]].id.Name, Antagonist: g.tasks[key[1]].id.Name,
				From: s.from, To: s.to, Cause: string(g.scenario.Channel)})
		}
	}
	slices.SortFunc(all, func(a, b trace.Label) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Victim, b.Victim), cmp.Compare(a.Antagonist, b.Antagonist))
	})
	return all
}
