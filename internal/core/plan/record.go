package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// An incident keeps its strongest analysis, in addition the latest one, and the tasks
// that were named. Caps decide: a task is proven if a cap on it helped, and at most
// possible if a cap or a trial was in vain. A trial that helped proves nothing by itself:
// detection weighs it together with everything else that it remembers.

// maxNamed is how many antagonists an incident remembers. If one more is named, the
// weakest of the others is forgotten, among equals the one named longest ago.
const maxNamed = 16

// named is a Finding as the planner keeps it.
type named struct {
	Finding
	analysis *Analysis // the analysis with Suspect's grounds
}

// strongest returns the suspect that gives an analysis its strength: of the named ones
// the surest, else the first that is not excluded; nil if there is none.
func (a *Analysis) strongest() *detect.Suspect {
	var best *detect.Suspect
	for i := range a.Suspects[:min(max(a.Antagonists, 1), len(a.Suspects))] {
		if s := &a.Suspects[i]; s.Excluded == "" && (best == nil || s.Level > best.Level) {
			best = s
		}
	}
	return best
}

// Level is the level of an analysis' surest suspect, if none is named at most Possible.
func (a *Analysis) Level() detect.Level {
	s := a.strongest()
	switch {
	case s == nil:
		return detect.None
	case a.Antagonists == 0:
		return min(s.Level, detect.Possible)
	}
	return s.Level
}

// rank orders analyses by their levels, but a change of the victim itself ranks above a
// suspect that is only possible.
func (a *Analysis) rank() int {
	if l := a.Level(); l >= detect.Likely {
		return int(l) + 1
	} else if a.Kind != detect.PhaseChange {
		return int(l)
	}
	return int(detect.Possible) + 1
}

// stronger reports whether an analysis replaces an older one. Among equals it does if its
// figure is higher, if there is no suspect to compare, or for a phase change.
func (a *Analysis) stronger(old *Analysis) bool {
	s, than := a.strongest(), old.strongest()
	switch was := old.rank(); {
	case a.rank() != was:
		return a.rank() > was
	case s == nil || than == nil || s.Level == detect.None || a.Kind == detect.PhaseChange:
		return true
	}
	return surer(s, than)
}

// surer reports whether a suspect's grounds are stronger than another's. Figures of
// different methods do not compare.
func surer(s, than *detect.Suspect) bool {
	if s.Level != than.Level {
		return s.Level > than.Level
	}
	return s.Basis == than.Basis && figure(s) > figure(than)
}

// figure is the number that a suspect's level rests on.
func figure(s *detect.Suspect) float64 {
	switch s.Basis {
	case detect.ByAccounts:
		return s.Share + s.Displaced
	case detect.ByFormula:
		return s.Correlation
	}
	return s.Probability
}

// keep stores a finding together with what caps have shown about its suspects.
func (inc *incident) keep(now sample.Millis, f *detect.Finding) {
	a := &Analysis{Analysed: now, Result: f.Result}
	a.demoteFailed(inc)
	a.Reason = reason(&inc.Incident, a, f.Trial)
	inc.latest = a
	// After a cap that may have helped, an analysis without a neighbour replaces nothing.
	vain := !slices.ContainsFunc(inc.rounds, func(r *round) bool { return !r.didNotHelp() })
	if inc.best == nil || a.stronger(inc.best) && (vain || a.Kind == detect.Neighbour) {
		inc.best = a
	}
	for i := range a.Suspects[:a.Antagonists] {
		inc.name(now, &a.Suspects[i], a)
	}
}

// name records that an analysis names a suspect.
func (inc *incident) name(now sample.Millis, s *detect.Suspect, a *Analysis) {
	i := slices.IndexFunc(inc.named, func(n *named) bool { return n.Suspect.Key == s.Key })
	if i < 0 {
		if len(inc.named) == maxNamed {
			inc.forgetWeakest()
		}
		inc.named = append(inc.named, &named{Finding{Suspect: *s, From: now, Until: now}, a})
		return
	}
	n := inc.named[i]
	if n.Until = now; surer(s, &n.Suspect) {
		n.Suspect, n.analysis = *s, a
	}
}

func (inc *incident) forgetWeakest() {
	weakest := slices.MinFunc(inc.named, func(a, b *named) int {
		return cmp.Or(cmp.Compare(a.Suspect.Level, b.Suspect.Level), cmp.Compare(a.Until, b.Until))
	})
	inc.named = slices.DeleteFunc(inc.named, func(n *named) bool { return n == weakest })
}

// graded returns a finding's suspects with what caps in this incident showed about them.
func (inc *incident) graded(suspects []detect.Suspect) []detect.Suspect {
	all, copied := suspects, false
	for i := range suspects {
		for _, r := range slices.Backward(inc.rounds) {
			if r.alone(suspects[i].Key) && r.Judged() {
				if !copied {
					all, copied = slices.Clone(suspects), true
				}
				all[i] = inc.grade(r, suspects[i])
				break
			}
		}
	}
	return all
}

// grade is a suspect with what a cap on it has shown. A suspect that is named again after
// a cap on it helped is proven; after a trial only if it was served meanwhile (accounts).
// A suspect that was capped in vain is at most possible.
func (inc *incident) grade(r *round, s detect.Suspect) detect.Suspect {
	switch why := capResult(&inc.Incident, &r.Round); {
	case s.Basis == detect.ByGroup: // its cap alone says nothing of the group
	case !r.didNotHelp() && s.Level == detect.Likely && (!r.Trial || s.Basis == detect.ByAccounts):
		s.Level, s.Basis, s.Why = detect.Proven, detect.ByTrial, why
	case r.didNotHelp() && s.Basis == detect.ByTrial:
		s.Level, s.Why = detect.Possible, why
	case r.didNotHelp() && !strings.Contains(s.Why, capDidNotHelp):
		s.Level = min(s.Level, detect.Possible)
		s.Why = strings.TrimPrefix(s.Why+"; "+why, "; ")
	}
	return s
}

// demoteFailed ranks suspects that are no longer named, because a cap on them was in vain,
// behind those that are.
func (a *Analysis) demoteFailed(inc *incident) {
	failed := func(s detect.Suspect) bool { return s.Level < detect.Likely && inc.capFailed(s.Key) }
	named := a.Suspects[:a.Antagonists]
	if !slices.ContainsFunc(named, failed) {
		return
	}
	var is, no []detect.Suspect
	for _, s := range named {
		if failed(s) {
			no = append(no, s)
		} else {
			is = append(is, s)
		}
	}
	a.Suspects, a.Antagonists = slices.Concat(is, no, a.Suspects[a.Antagonists:]), len(is)
}

func (inc *incident) capFailed(k sample.TaskKey) bool {
	return slices.ContainsFunc(inc.rounds, func(r *round) bool { return r.alone(k) && r.didNotHelp() })
}

// applyOutcome applies what a cap that ended has shown about its suspect.
func (inc *incident) applyOutcome(now sample.Millis, r *round) {
	if !r.Judged() {
		return
	}
	kept := []*Analysis{inc.best, inc.latest, r.analysis}
	for _, n := range inc.named {
		kept = append(kept, n.analysis)
		if n.Suspect.Key == r.Suspect.Key {
			n.Suspect = inc.grade(r, n.Suspect)
		}
	}
	for _, a := range kept {
		inc.review(r, a)
	}
	// An improvement during one trial of a suspect that was only possible may be chance:
	// detection weighs it with everything else (detect.Finding).
	if !r.didNotHelp() && !r.Trial {
		inc.prove(now, r)
	}
	for _, n := range inc.named {
		if n.Suspect.Level >= detect.Likely && n.analysis.stronger(inc.best) {
			inc.best = n.analysis
		}
	}
}

// review updates an analysis with what a cap has shown.
func (inc *incident) review(r *round, a *Analysis) {
	for i := range a.Suspects {
		if a.Suspects[i].Key != r.Suspect.Key {
			continue
		}
		if g := inc.grade(r, a.Suspects[i]); g.Grounds != a.Suspects[i].Grounds {
			a.Suspects = slices.Clone(a.Suspects)
			a.Suspects[i] = g
			a.demoteFailed(inc)
			a.Reason = reason(&inc.Incident, a, false)
		}
		return
	}
}

// prove names a suspect that no analysis had named: a cap on it helped.
func (inc *incident) prove(now sample.Millis, r *round) {
	if i := slices.IndexFunc(inc.named, func(n *named) bool { return n.Suspect.Key == r.Suspect.Key }); i >= 0 && inc.named[i].Suspect.Level == detect.Proven {
		return
	}
	a := *r.analysis
	s := detect.Suspect{Task: r.Suspect, Correlation: r.Correlation}
	n, rest := a.Antagonists+1, slices.Clone(a.Suspects)
	if i := slices.IndexFunc(rest, func(x detect.Suspect) bool { return x.Key == s.Key }); i >= 0 {
		s = rest[i]
		rest = slices.Delete(rest, i, i+1)
		if i < a.Antagonists {
			n--
		}
	}
	s.Excluded, s.Level, s.Basis, s.Why = "", detect.Proven, detect.ByTrial, capResult(&inc.Incident, &r.Round)
	a.Analysed, a.Kind, a.Change, a.Suspects, a.Antagonists = now, detect.Neighbour, "", slices.Insert(rest, 0, s), n
	a.Reason = reason(&inc.Incident, &a, false)
	if inc.latest == r.analysis {
		inc.latest = &a
	}
	inc.name(now, &s, &a)
}
