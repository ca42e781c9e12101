package plan

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A group (detect.Result.Group) is capped in one round: the caps begin and end together, and have
// one outcome, which says nothing of a part of them (docs/design/0014).

// vainGroup returns the newest round in vain that had all of the group's members; nil if there
// is none.
func (inc *incident) vainGroup(group []detect.Member) *round {
	for _, r := range slices.Backward(inc.rounds) {
		if r.didNotHelp() && !slices.ContainsFunc(group, func(m detect.Member) bool { return !r.Has(m.Task.Key) }) {
			return r
		}
	}
	return nil
}

// groupOf returns the ID of the first round that capped a suspect together with others, if it is
// named as one of a group; else "".
func (inc *incident) groupOf(s *detect.Suspect) string {
	for _, r := range inc.rounds {
		if s.Basis == detect.ByGroup && len(r.With) > 0 && r.Has(s.Key) {
			return r.ID
		}
	}
	return ""
}

// groupReason says that tasks hurt only together, with what limits have shown; "" if the group of
// the analysis is not named.
func (inc *Incident) groupReason(a *Analysis, rounds []*round) string {
	var names []string
	for _, m := range a.Group {
		if !slices.ContainsFunc(a.Suspects[:a.Antagonists], func(s detect.Suspect) bool { return s.Key == m.Task.Key && s.Basis == detect.ByGroup }) {
			return ""
		}
		names = append(names, m.Task.Name.String())
	}
	if len(names) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s hurt %s only together", list(names), inc.Victim.Name)
	for _, r := range slices.Backward(rounds) {
		if len(r.With) > 0 && r.Outcome == TruePositive {
			text += fmt.Sprintf(": %s of %s fell from %.3g to %.3g while %s were capped", inc.Signal, inc.Victim.Name, r.CostBefore, r.CostUnder, r.Names())
			break
		}
	}
	for _, r := range slices.Backward(rounds) {
		if len(r.With) == 0 && r.Judged() && float64(r.CostUnder) > a.Threshold && slices.ContainsFunc(a.Group, func(m detect.Member) bool { return r.alone(m.Task.Key) }) {
			return text + fmt.Sprintf("; with %s alone capped it was %.3g", r.Suspect.Name, r.CostUnder)
		}
	}
	return text
}

// trials counts the incident's trials.
func (inc *incident) trials() (n int) {
	for _, r := range inc.rounds {
		if r.Trial {
			n++
		}
	}
	return n
}

// actOnGroup makes a trial of a group, or caps one that is proven. It returns false if there is
// nothing to do for the group as a whole. A trial limits all members: its result is on all of
// them.
func (p *Planner) actOnGroup(now sample.Millis, inc *incident, f detect.Finding, window func(sample.TaskKey) []detect.Point) bool {
	trial := f.GroupTrial || !f.GroupProven && f.Trial && inc.trials() == p.policy.Trials-1
	if !trial && !(f.GroupProven && f.Kind == detect.Neighbour) {
		return false
	}
	set := f.Group
	if !trial {
		set = leaveOut(set)
		if len(set) == len(f.Group) {
			set = p.cheapest(&f, set)
		}
	}
	all := make([]Action, len(set))
	for i, m := range set {
		var ok bool
		if all[i], ok = p.policy.limited(f.Signal, m.Task); !ok {
			return false
		}
	}
	var why string
	var names []string
	for _, m := range set {
		s := inc.suspect(&f, m.Task.Key)
		names = append(names, m.Task.Name.String())
		why = cmp.Or(why, noHelpReason(f.Victim), noCapReason(m.Task), inc.groupRuledOut(m.Task.Key), p.noWitnessReason(now, inc, &s))
		if p.Capped(m.Task.Key) {
			why = cmp.Or(why, string(m.Task.Name)+" is capped already")
		}
	}
	lasts := p.policy.For
	if trial {
		if lasts = min(p.policy.Trial, p.policy.For); lasts <= 0 {
			lasts = p.policy.For
		}
	}
	what := fmt.Sprintf("cap %s together to %s for %s", list(names), all[0].Limit(), lasts)
	switch {
	case why != "":
		return false
	case p.policy.Mode == Off:
		inc.NotDone = "enforcement is off"
	case p.policy.Mode == Advise:
		inc.advise(what)
	case trial && p.policy.Trial <= 0:
		inc.NotDone, inc.Advice = "not tried: trials are off", what+" as a trial"
	case trial && inc.trials() >= p.policy.Trials:
		inc.NotDone = fmt.Sprintf("not tried: the limit of trials is reached (%d)", inc.trials())
	case p.inForce()+len(all) > p.policy.MaxCaps:
		inc.NotDone = fmt.Sprintf("the limit of caps is reached (%d); would %s", p.inForce(), what)
	default:
		inc.Advice = what
		correlations := make([]float64, len(all))
		for i := range all {
			s := inc.suspect(&f, all[i].Task.Key)
			correlations[i] = s.Correlation
			all[i].Until, all[i].By = now.Add(lasts), auto
			all[i].Why = fmt.Sprintf("%s of %s at %.3g over %.3g: %s hurt it together", f.Signal, f.Victim.Name, f.Cost, f.Threshold, list(names))
			if trial {
				all[i].Why = "trial: " + inc.latest.Reason
			}
		}
		caps := p.startTogether(now, inc, all, correlations, window)
		caps[0].round.Trial = trial
	}
	return true
}

// groupRuledOut says why a member cannot be capped again in this incident, whatever with; "" if
// it can.
func (inc *incident) groupRuledOut(k sample.TaskKey) string {
	if why := inc.ruledOut(k); why != capDidNotHelp {
		return why
	}
	return ""
}

// suspect returns a finding's suspect; only the task if it does not list it.
func (inc *incident) suspect(f *detect.Finding, k sample.TaskKey) detect.Suspect {
	for i := range f.Suspects {
		if f.Suspects[i].Key == k {
			return f.Suspects[i]
		}
	}
	return detect.Suspect{Task: sample.Task{Key: k}}
}

// leaveOut returns the members without the one with the smallest share of those of which it is
// not known that they are needed; all if there is none.
func leaveOut(members []detect.Member) []detect.Member {
	for i := range slices.Backward(members) {
		if !members[i].Needed {
			return slices.Delete(slices.Clone(members), i, i+1)
		}
	}
	return members
}

// cheapest returns the members, two or more, whose caps are predicted to bring the victim below
// its threshold and take the least; all if none do.
func (p *Planner) cheapest(f *detect.Finding, members []detect.Member) []detect.Member {
	best, least := members, math.Inf(1)
	for set := 1; set < 1<<len(members); set++ {
		if bits.OnesCount(uint(set)) < 2 {
			continue
		}
		var some []detect.Member
		cost, takes := f.Cost, 0.0
		for i, m := range members {
			if set&(1<<i) == 0 {
				continue
			}
			part := 1.0 // of its usage that a cap takes
			if a, _ := p.policy.limited(f.Signal, m.Task); a.Rate > 0 && m.Usage > 0 {
				part = max(0, 1-a.Rate/m.Usage)
			}
			cost -= (f.Cost - f.Spec.Mean) * m.Share * part
			takes += m.Usage * part
			some = append(some, m)
		}
		if cost <= f.Threshold && takes < least {
			best, least = some, takes
		}
	}
	return best
}

// list joins names as in a sentence.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
