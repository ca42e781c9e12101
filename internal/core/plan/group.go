package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// A group are tasks that hurt a victim together, while a limit on one of them is not enough
// (Policy.Groups, docs/design/0014). It is found by limits: all suspects are capped together, as
// one round with one result. If that helps, they are capped again but for one of them, in turn,
// and only those without whose cap the victim suffers again are named.

// Constants of groups: unit, meaning, and how each was chosen (docs/design/0014).
const (
	// Tasks: most that are capped together.
	maxGroup = 4
	// Victims whose groups are kept. Bounds memory.
	maxGroups = 256
	// Standard errors: least rise of the victim's cost without a member's cap. The deviation is that
	// of the rounds of a set from each other, or the spec's if that is more.
	neededErrors = 2
	// Share of what a cap of all gives, divided by the number of members: the same.
	neededShare = 0.5
	// Rounds of a whole group before a member is left out; one more follows each time that each
	// member was left out.
	minWhole = 2
	// Share of the excess before the first round: a round under which more is left is in vain.
	vainExcess = 0.5
	// Rounds without a member's cap: least for a decision, and until it counts as not needed.
	minLeftOut, maxLeftOut = 3, 8
	// Rounds without a member's cap, those in which it did not work included, until it counts as
	// not needed.
	maxIdle = 14
	// Share of a member's usual pressure: least that it used in a round without its cap, for the
	// round to say anything.
	minActive = 0.5
	// Share of the victim's excess that must disappear under a cap that is enough, if the cost is
	// not below the threshold. A cap leaves its task a rate, and other tasks work too.
	enoughRelief = 0.75
	// Share of a candidate's share of the victim's time from which a suspect is a candidate too.
	asLong = 0.5
	// Rounds in vain, in a row, of a whole group that end it.
	maxGroupVain = 2
)

// group is a group of a victim, with what its rounds have shown.
type group struct {
	id      string // of its first round
	members []*member
	// bad is the victim's cost before the first round, whole that while all members were limited;
	// a value for each round.
	bad   float64
	whole stat.Moments
	vain  int // rounds in a row
}

// member is a task of a group.
type member struct {
	task        sample.Task
	correlation float64
	usage       float64      // before the first round, in the unit of its pressure
	needed      bool         // the victim suffers more without its cap
	leftOut     int          // rounds without its cap, whether it worked meanwhile or not
	without     stat.Moments // the victim's cost while all others were limited, and it was not; a value for each round
}

// actOnGroup does what the incident's group needs next, or begins one. It returns false if that
// is nothing, so that suspects are limited one by one.
func (p *Planner) actOnGroup(now sample.Millis, inc *incident, f *detect.Finding, window func(sample.TaskKey) []detect.Point) bool {
	if !p.policy.Groups || !p.policy.TrialsEnabled() || f.Spec.Provisional || noHelpReason(f.Victim) != "" {
		return false
	}
	switch f.Kind {
	case detect.Neighbour, detect.Nobody, detect.Indeterminate:
	case detect.PhaseChange: // "no other task used more" may be all that is seen of a group
		if f.Change == detect.MoreWork || len(inc.rounds) == 0 {
			return false
		}
	default:
		return false
	}
	k := keyOf(f.Signal, f.Victim.Key, f.Kind)
	g := p.groups[k]
	if r := inc.newest(); r != nil {
		return p.endsForGroup(now, inc, f, g, r)
	}
	if g == nil {
		return p.beginGroup(now, inc, f, window)
	}
	set, left := g.next(inc.targetCost())
	if !p.capTogether(now, inc, f, set, left, false, window) {
		delete(p.groups, k)
		return false
	}
	return true
}

// endsForGroup reports whether a group determines what follows while a round is in force that is
// not enough. It ends one that leaves out a member, since that has been shown then; a trial of one
// task, so that no two last at once; and one with which more tasks can be capped.
func (p *Planner) endsForGroup(now sample.Millis, inc *incident, f *detect.Finding, g *group, r *round) bool {
	more := p.further(now, inc, f, r)
	switch {
	case r.By != auto:
		return false
	case g != nil && r.left != nil:
		p.lift(now, r.ID, "the victim suffers without the cap on "+string(r.left.task.Name), "")
		return true
	case r.Trial && len(r.With) == 0:
		if r.Samples > 0 {
			p.lift(now, r.ID, "it is not enough", "")
		}
		return true
	case r.Samples == 0 || len(more) == 0 || len(r.With) > 0 && inc.mayBeRelieved(float64(r.CostBefore), float64(r.CostUnder), float64(r.Samples)):
		return false
	case g != nil:
		p.lift(now, r.ID, "it is not enough: more tasks will be capped with them", "")
		g.extend(more) // in vain if that round has ended the group
		return true
	}
	all := more
	for _, c := range r.Tasks() {
		all = append(all, &member{task: c.Suspect, correlation: c.Correlation})
	}
	if !p.mayBegin(inc, f, all) {
		return false
	}
	p.lift(now, r.ID, "it is not enough: it will be capped together with others", "")
	return true
}

// further are the candidates that are not capped by the round and can be capped with it.
func (p *Planner) further(now sample.Millis, inc *incident, f *detect.Finding, r *round) []*member {
	all := slices.DeleteFunc(p.candidates(now, inc, f), func(m *member) bool { return r.Has(m.task.Key) })
	return all[:min(len(all), max(0, p.mostTogether()-len(r.Tasks())))]
}

// mostTogether is the number of tasks that may be capped together: no more than the victims of one job
// may have (room).
func (p *Planner) mostTogether() int { return min(maxGroup, shareOfJob(p.policy.MaxCaps)) }

// extend adds members to a group that is not enough. What its rounds have shown is of another set.
func (g *group) extend(more []*member) {
	g.members = append(g.members, more...)
	for _, m := range g.members {
		m.needed, m.leftOut, m.without = false, 0, stat.Moments{}
	}
	g.whole, g.vain = stat.Moments{}, 0
}

// beginGroup caps suspects together if a limit on one of them was not enough, and no other one
// that the finding names or would try is to be limited alone first: as a trial, or for good if each of
// them is an antagonist.
func (p *Planner) beginGroup(now sample.Millis, inc *incident, f *detect.Finding, window func(sample.TaskKey) []detect.Point) bool {
	all, first := p.candidates(now, inc, f), ranked(f)
	helped, limited, untried := false, false, false
	for _, m := range all {
		tried := false
		for _, r := range inc.rounds {
			if r.Has(m.task.Key) && r.Judged() && !inc.enough(r) {
				tried, helped = true, helped || r.Outcome == TruePositive
			}
		}
		limited = limited || tried
		untried = untried || !tried && slices.ContainsFunc(first, func(s detect.Suspect) bool { return s.Key == m.task.Key })
	}
	if wait := !helped && untried && inc.trials(false) < p.policy.Trials-1 && inc.trials(true) == 0; wait || !limited || !p.mayBegin(inc, f, all) {
		return false
	}
	return p.capTogether(now, inc, f, all, nil, !p.named(f, all), window)
}

// mayBegin reports whether these are tasks that were not tried together, and may be.
func (p *Planner) mayBegin(inc *incident, f *detect.Finding, all []*member) bool {
	return len(all) >= 2 && !inc.triedTogether(all) && (inc.trials(true) < maxGroup-1 || p.named(f, all))
}

// named reports whether the finding names each of the tasks so surely that it may be capped
// without a trial.
func (p *Planner) named(f *detect.Finding, all []*member) bool {
	return !slices.ContainsFunc(all, func(m *member) bool {
		return !slices.ContainsFunc(f.Suspects[:f.Antagonists], func(s detect.Suspect) bool { return s.Key == m.task.Key && s.Level >= p.policy.MinLevel })
	})
}

// candidates are the suspects that may be capped together: those that the finding names or would
// try, those on which a cap in this incident was not enough, alone or together, and by the
// accounts of a queue those that were served as long as one of these.
func (p *Planner) candidates(now sample.Millis, inc *incident, f *detect.Finding) (all []*member) {
	add := func(s *detect.Suspect) {
		known := slices.ContainsFunc(all, func(m *member) bool { return m.task.Key == s.Key })
		if known || len(all) == p.mostTogether() || inc.barred(s.Key) || noCapReason(s.Task) != "" || p.noWitnessReason(now, inc, s) != "" {
			return
		}
		if c := p.capOf(s.Key); c != nil && (c.incident != inc || c.By != auto) {
			return
		}
		all = append(all, &member{task: s.Task, correlation: s.Correlation})
	}
	first := ranked(f)
	for i := range first {
		add(&first[i])
	}
	for _, r := range slices.Backward(inc.rounds) {
		if r.By == auto && r.left == nil && r.Judged() && !inc.enough(r) {
			for _, c := range r.Tasks() {
				add(&detect.Suspect{Task: c.Suspect, Correlation: c.Correlation})
			}
		}
	}
	most := 0.0
	for i := range f.Suspects {
		if s := &f.Suspects[i]; s.Basis == detect.ByAccounts && slices.ContainsFunc(all, func(m *member) bool { return m.task.Key == s.Key }) {
			most = max(most, s.Share)
		}
	}
	for i := range f.Suspects {
		if s := &f.Suspects[i]; most > 0 && s.Basis == detect.ByAccounts && s.Share >= asLong*most && s.Share > s.UsualShare {
			add(s)
		}
	}
	return all
}

// ranked are the suspects that the finding names or would try.
func ranked(f *detect.Finding) []detect.Suspect {
	return f.Suspects[:min(max(f.Antagonists, f.TrialCandidates), len(f.Suspects))]
}

// enough reports whether a cap that was judged sufficed: it helped, and the victim was below its
// threshold, or nearly all of its excess was gone.
func (inc *incident) enough(r *round) bool {
	return r.Outcome == TruePositive && inc.relieved(float64(r.CostBefore), float64(r.CostUnder))
}

// relieved reports whether a cost is low enough after a higher one.
func (inc *incident) relieved(before, under float64) bool {
	return under <= inc.latest.Threshold || before-under >= enoughRelief*(before-inc.SpecMean)
}

// mayBeRelieved is relieved for a mean of a few samples: it may be a standard error too high.
func (inc *incident) mayBeRelieved(before, under, samples float64) bool {
	return inc.relieved(before, under-inc.SpecStdDev/math.Sqrt(samples))
}

// barred reports whether a task may not be capped again in this incident, whatever with.
func (inc *incident) barred(k sample.TaskKey) bool {
	why := inc.ruledOut(k)
	return why != "" && why != capDidNotHelp
}

// triedTogether reports whether a round that has all of the tasks is in force, or gave a result.
func (inc *incident) triedTogether(all []*member) bool {
	return slices.ContainsFunc(inc.rounds, func(r *round) bool {
		return (r.Ended == 0 || r.Judged()) && !slices.ContainsFunc(all, func(m *member) bool { return !r.Has(m.task.Key) })
	})
}

// trials counts the incident's trials of one task, or those of several.
func (inc *incident) trials(together bool) (n int) {
	for _, r := range inc.rounds {
		if r.Trial && len(r.With) > 0 == together {
			n++
		}
	}
	return n
}

// capTogether caps tasks of a group in one round, all but left, which is nil if that is all. It
// reports whether they may be capped.
func (p *Planner) capTogether(now sample.Millis, inc *incident, f *detect.Finding, set []*member, left *member, trial bool, window func(sample.TaskKey) []detect.Point) bool {
	if p.room(inc) < len(set) {
		return false
	}
	lasts := p.policy.For
	if trial {
		lasts = min(p.policy.Trial, lasts)
	}
	all, correlations, names := make([]Action, len(set)), make([]float64, len(set)), make([]string, len(set))
	for i, m := range set {
		a, ok := p.policy.limited(f.Signal, m.task)
		s := detect.Suspect{Task: m.task}
		if !ok || p.Capped(m.task.Key) || inc.barred(m.task.Key) || noCapReason(m.task) != "" || p.noWitnessReason(now, inc, &s) != "" {
			return false
		}
		a.Until, a.By = now.Add(lasts), auto
		all[i], correlations[i], names[i] = a, m.correlation, m.task.Name.String()
	}
	for i := range all {
		all[i].Why = fmt.Sprintf("%s of %s at %.3g over %.3g: %s are limited together", f.Signal, f.Victim.Name, f.Cost, f.Threshold, list(names))
		if trial {
			all[i].Why = "trial: " + all[i].Why
		}
	}
	inc.Advice = fmt.Sprintf("cap %s together to %s for %s", list(names), all[0].Limit(), lasts)
	r := p.startTogether(now, inc, all, correlations, window)[0].round
	r.Trial, r.left, r.ofGroup = trial, left, true
	return true
}

// judgeGroup applies what a round of several tasks that ended has shown.
func (p *Planner) judgeGroup(now sample.Millis, inc *incident, r *round) {
	k := keyOf(inc.Signal, inc.Victim.Key, detect.Neighbour)
	g := p.groups[k]
	if !r.Judged() {
		return
	}
	if g == nil {
		if len(r.With) > 0 && r.Outcome == TruePositive && inc.mayBeRelieved(float64(r.CostBefore), float64(r.CostUnder), float64(r.Samples)) {
			g = &group{id: r.ID, bad: float64(r.CostBefore)}
			for _, c := range r.Tasks() {
				// Without a trial each is an antagonist on grounds of its own.
				g.members = append(g.members, &member{task: c.Suspect, correlation: c.Correlation, usage: float64(c.UsageBefore), needed: !r.Trial})
			}
			g.whole.Add(float64(r.CostUnder), float64(r.Samples))
			p.keepGroup(k, g)
		}
	} else if r.left == nil {
		g.whole.Add(float64(r.CostUnder), float64(r.Samples))
		if g.vain++; r.Outcome == TruePositive || float64(r.CostUnder)-inc.SpecMean <= vainExcess*(g.bad-inc.SpecMean) {
			g.vain = 0
		}
		if g.whole.N == minWhole && (g.vain > 0 || !inc.mayBeRelieved(g.bad, g.whole.Mean, g.whole.W)) { // the first may have been chance
			g.vain = maxGroupVain
		}
	} else {
		if r.left.leftOut++; r.leftUsage.Mean >= minActive*r.left.usage {
			r.left.without.Add(float64(r.CostUnder), float64(r.Samples))
		}
		g.decide(r.left, inc.SpecStdDev)
	}
	switch {
	case g == nil:
	case len(g.members) < 2 || g.vain >= maxGroupVain:
		delete(p.groups, k)
	case len(r.With) > 0 && !slices.ContainsFunc(g.members, func(m *member) bool { return !m.needed }):
		inc.nameGroup(now, g, r)
	}
}

// keepGroup keeps a group of a victim.
func (p *Planner) keepGroup(k incidentKey, g *group) {
	if len(p.groups) >= maxGroups {
		clear(p.groups)
	}
	p.groups[k] = g
}

// forgetGroups forgets the groups of a task that ended.
func (p *Planner) forgetGroups(k sample.TaskKey) {
	for key, g := range p.groups {
		if key.victim == k || slices.ContainsFunc(g.members, func(m *member) bool { return m.task.Key == k }) {
			delete(p.groups, key)
		}
	}
}

// decide decides whether a member's cap is needed, or removes it.
func (g *group) decide(m *member, sd float64) {
	rise := m.without.Mean - g.whole.Mean
	least := neededShare * (g.bad - g.whole.Mean) / float64(len(g.members))
	squares, n := g.whole.M2, float64(g.whole.N-1)
	for _, x := range g.members {
		if x.without.N > 1 {
			squares, n = squares+x.without.M2, n+float64(x.without.N-1)
		}
	}
	deviation := math.Sqrt(max(sd*sd, squares/max(n, 1)) * (1/g.whole.W + 1/m.without.W))
	switch {
	case m.needed || m.without.N < minLeftOut && m.leftOut < maxIdle:
	case rise >= max(least, neededErrors*deviation):
		m.needed = true
	case rise+deviation < least || m.without.N >= maxLeftOut || m.leftOut >= maxIdle:
		g.members = slices.DeleteFunc(g.members, func(x *member) bool { return x == m })
		g.whole.Merge(m.without) // all that are left were limited then
	}
}

// next returns the tasks that are to be capped together, and the one that is left out: all of them;
// all but one, in turn, until each is decided; and then those whose caps take the least of the sets that kept the
// victim's cost at the target.
func (g *group) next(target float64) (set []*member, left *member) {
	open := false
	for _, m := range g.members {
		switch {
		case !m.needed && (!open || m.leftOut < left.leftOut || m.leftOut == left.leftOut && m.correlation < left.correlation):
			left, open = m, true
		case !open && m.without.N > 0 && m.without.Mean <= target && (left == nil || m.usage > left.usage):
			left = m
		}
	}
	if open && g.whole.N < int64(minWhole+left.leftOut) {
		return g.members, nil
	}
	return slices.DeleteFunc(slices.Clone(g.members), func(m *member) bool { return m == left }), left
}

// nameGroup names the members of a group that is decided, as one finding.
func (inc *incident) nameGroup(now sample.Millis, g *group, r *round) {
	a := *inc.latest
	rest := slices.Clone(a.Suspects)
	var names []string
	var named []detect.Suspect
	for _, m := range g.members {
		names = append(names, m.task.Name.String())
		s := detect.Suspect{Task: m.task, Correlation: m.correlation}
		if i := slices.IndexFunc(rest, func(x detect.Suspect) bool { return x.Key == m.task.Key }); i >= 0 {
			s = rest[i]
			rest = slices.Delete(rest, i, i+1)
		}
		named = append(named, s)
	}
	for i := range named {
		s := &named[i]
		s.Excluded, s.Level, s.Basis = "", detect.Proven, detect.ByGroup
		s.Why = fmt.Sprintf("%s of %s fell from %.3g to %.3g while %s were limited together", inc.Signal, inc.Victim.Name, g.bad, g.whole.Mean, list(names))
		if m := g.members[i]; m.without.N > 0 {
			s.Why += fmt.Sprintf(", and was %.3g while %s was not", m.without.Mean, m.task.Name)
		}
	}
	a.Analysed, a.Kind, a.Change, a.Suspects, a.Antagonists = now, detect.Neighbour, "", slices.Concat(named, rest), len(named)
	a.Reason = fmt.Sprintf("%s hurt %s together: %s", list(names), inc.Victim.Name, named[0].Why)
	for i := range named {
		inc.name(now, &a.Suspects[i], &a)
	}
	for _, n := range inc.named {
		if slices.ContainsFunc(g.members, func(m *member) bool { return m.task.Key == n.Suspect.Key }) {
			n.Group = g.id
		}
	}
	if a.stronger(inc.best) {
		inc.best = &a
	}
}

// list joins names as in a sentence.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
