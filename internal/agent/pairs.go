package agent

import (
	"cmp"
	"maps"
	"slices"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// maxPairs bounds the number of series that grows with open incidents, and with caps.
const maxPairs = 50

// pairKey is an open incident's kind and signal, and the jobs that it concerns: a task's name
// would be a series of its own after each restart. The namespaces are Kubernetes', "" elsewhere.
// No suspect: the incident names none.
type pairKey struct {
	kind                      detect.Kind
	signal                    sample.SignalName
	suspect, suspectNamespace string
	victim, victimNamespace   string
}

// pair is what is open for a pairKey.
type pair struct {
	pairKey
	incidents       int
	level           detect.Level // the highest
	cost, threshold float64      // of the incident that is worst in relation to its threshold; NaN: not known
}

// names are the values of pairLabels.
func (p *pair) names() []string {
	return []string{p.kind.String(), string(p.signal), p.suspect, p.suspectNamespace, p.victim, p.victimNamespace}
}

var pairLabels = []string{"kind", "signal", "suspect", "suspect_namespace", "victim", "victim_namespace"}

func (p *pair) excess() float64 { return p.cost / p.threshold }

// pairs are the open incidents by pair, the surest and worst first, and how many more there are.
// Those by a provisional spec are left out: alerts stand on these.
func (v *view) pairs() (top []*pair, more int) {
	all := map[pairKey]*pair{}
	add := func(k pairKey, level detect.Level, now *detect.Result) {
		one := &pair{k, 0, level, now.Cost, now.Threshold}
		p := all[k]
		if p == nil {
			p = one
			all[k] = p
		}
		p.incidents++
		p.level = max(p.level, level)
		if cmp.Compare(one.excess(), p.excess()) > 0 { // NaN is the lowest
			p.cost, p.threshold = one.cost, one.threshold
		}
	}
	for _, inc := range v.pipeline.Planner.Open() {
		if inc.SpecSamples > 0 {
			continue
		}
		k := pairKey{kind: inc.Kind, signal: inc.Signal, victim: string(inc.Victim.Job), victimNamespace: v.label(&inc.Victim, "namespace")}
		named, now := inc.Suspects[:min(inc.Antagonists, len(inc.Suspects))], &inc.Now().Result
		if len(named) == 0 {
			add(k, detect.None, now)
		}
		for i := range named {
			s := &named[i]
			k.suspect, k.suspectNamespace = string(s.Job), v.label(&s.Task, "namespace")
			if s.Name == detect.OutsideName { // it has no job, and is a suspect all the same
				k.suspect = string(s.Name)
			}
			add(k, s.Level, now)
		}
	}
	top = slices.SortedFunc(maps.Values(all), func(x, y *pair) int {
		return cmp.Or(cmp.Compare(y.level, x.level), cmp.Compare(y.excess(), x.excess()), slices.Compare(x.names(), y.names()))
	})
	more = max(0, len(top)-maxPairs)
	return top[:len(top)-more], more
}

// label is what is known of a task by that name, while it exists.
func (v *view) label(t *sample.Task, name string) string {
	if t := v.tasks.byKey[t.Key]; t != nil {
		return t.found.Labels()[name]
	}
	return ""
}
