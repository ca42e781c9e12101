package plan_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// members are three tasks that explain the excess together.
func members() (all []detect.Member) {
	for i, name := range []sample.TaskName{"/a", "/b", "/c"} {
		all = append(all, detect.Member{Task: sample.Task{Key: sample.TaskKey{Inode: uint64(20 + i)}, Name: name, Class: sample.Batch}, Share: 0.33, Usage: float64(1 + i)})
	}
	return all
}

// together is a finding of web's that wants a trial of the three, or has them proven.
func together(now sample.Millis, proven bool, needed ...int) detect.Finding {
	f := detect.Finding{At: now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.2}, First: now - 20*second, GroupTrial: !proven, GroupProven: proven, Trial: !proven,
		Result: detect.Result{Kind: detect.Indeterminate, Threshold: 1.4, Bad: 3, Cost: 2, Pairs: 10, Group: members()}}
	for i := range f.Group {
		s := detect.Suspect{Task: f.Group[i].Task, Grounds: detect.Grounds{Level: detect.Possible, Basis: detect.ByStatistics, Probability: 0.7}}
		if proven {
			s.Level, s.Basis, f.Kind, f.Antagonists = detect.Likely, detect.ByGroup, detect.Neighbour, 3
		}
		f.Suspects = append(f.Suspects, s)
	}
	for _, i := range needed {
		f.Group[i].Needed = true
	}
	return f
}

func groupPlanner(change func(*plan.Policy)) *plan.Planner {
	policy := plan.Paper()
	policy.Mode, policy.Trial, policy.MinLevel = plan.On, 3*time.Minute, detect.Proven
	if change != nil {
		change(&policy)
	}
	return plan.New("machine", detect.EvidenceMethod, policy)
}

// capped lists the tasks of a planner's Cap actions, and the IDs of all its actions by kind.
func capped(out plan.Output) (names []string, ids map[plan.ActionKind][]string) {
	ids = map[plan.ActionKind][]string{}
	for _, a := range out.Actions {
		ids[a.Kind] = append(ids[a.Kind], a.ID)
		if a.Kind == plan.Cap {
			names = append(names, string(a.Task.Name))
		}
	}
	return names, ids
}

// TestAGroupIsOneRound: its caps begin and end together and have one outcome; it says nothing of
// a member alone, also if it is in vain.
func TestAGroupIsOneRound(t *testing.T) {
	for _, c := range []struct {
		under float64
		want  plan.Outcome
	}{{1, plan.TruePositive}, {2, plan.Noise}} {
		p := groupPlanner(nil)
		now := 600 * second
		// Three bad intervals are known before.
		before := func(k sample.TaskKey) (all []detect.Point) {
			for i := range sample.Millis(3) {
				all = append(all, detect.Point{At: now - 20*second + 10*second*i, Cost: 2, Pressure: 1})
			}
			return all
		}
		p.Finding(now, together(now, false), before)
		names, ids := capped(take(p))
		if !slices.Equal(names, []string{"/a", "/b", "/c"}) {
			t.Fatalf("capped %v", names)
		}
		for _, id := range ids[plan.Cap] {
			p.Applied(now, id, nil)
		}
		for range 4 {
			now += 10 * second
			sampled(p, now, now, sample.CPI, c.under)
		}
		now += 180 * second
		p.Tick(now)
		if _, ids := capped(take(p)); len(ids[plan.Uncap]) != 3 {
			t.Fatalf("%d caps end", len(ids[plan.Uncap]))
		}
		inc := p.Open()[0]
		r := inc.Rounds[0]
		if len(inc.Rounds) != 1 || len(r.Tasks()) != 3 || !r.Trial || r.Outcome != c.want || math.Abs(float64(r.CostUnder)-c.under) > 1e-9 {
			t.Errorf("%d rounds, the first %+v, want %s", len(inc.Rounds), r, c.want)
		}
		for _, s := range inc.Suspects {
			if s.Level != detect.Possible || strings.Contains(s.Why, "capping") {
				t.Errorf("%s: a member was judged alone: %+v", s.Name, s.Grounds)
			}
		}
		p.Lifted(now, ids[plan.Cap][0], false)
		p.Lifted(now, ids[plan.Cap][1], false)
		p.Lifted(now, ids[plan.Cap][2], false)
		// The same set is not tried again if it was in vain.
		p.Finding(now, together(now, false), before)
		if names, _ := capped(take(p)); c.want == plan.Noise && len(names) == 3 {
			t.Errorf("the set in vain is capped again: %v", names)
		}
	}
}

// TestAGroupHasAllOfItsCapsOrNone: if one fails, ends or is taken over, the others end, with one
// outcome; if not all fit, none is set.
func TestAGroupHasAllOfItsCapsOrNone(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(p *plan.Planner, now sample.Millis, id string)
		want plan.Outcome
	}{
		"failed":     {func(p *plan.Planner, now sample.Millis, id string) { p.Applied(now, id, errors.New("no")) }, plan.CapFailed},
		"taken over": {func(p *plan.Planner, now sample.Millis, id string) { p.Lifted(now, id, true) }, plan.CapTakenOver},
		"gone":       {func(p *plan.Planner, now sample.Millis, id string) { p.Gone(now, members()[1].Task.Key) }, plan.SuspectExited},
		"uncapped": {func(p *plan.Planner, now sample.Millis, id string) {
			if err := p.Uncap(now, members()[1].Task.Key, "r"); err != nil {
				t.Error(err)
			}
		}, plan.NotMeasured},
	} {
		p := groupPlanner(nil)
		now := 600 * second
		p.Finding(now, together(now, false), none)
		_, ids := capped(take(p))
		p.Applied(now, ids[plan.Cap][0], nil)
		end.do(p, now, ids[plan.Cap][1])
		_, after := capped(take(p))
		for _, id := range []string{ids[plan.Cap][0], ids[plan.Cap][2]} {
			if !slices.Contains(after[plan.Uncap], id) {
				t.Errorf("%s: the cap %s goes on", name, id)
			}
		}
		if r := p.Open()[0].Rounds; len(r) != 1 || r[0].Outcome != end.want {
			t.Errorf("%s: %+v, want %s", name, r[0], end.want)
		}
	}
	p := groupPlanner(func(p *plan.Policy) { p.MaxCaps = 2 })
	p.Finding(600*second, together(600*second, false), none)
	if names, _ := capped(take(p)); len(names) > 0 || !strings.Contains(p.Open()[0].NotDone, "the limit of caps") {
		t.Errorf("capped %v with two caps allowed; %q", names, p.Open()[0].NotDone)
	}
}

// TestAProvenGroupIsCappedWithTheLeastLoss: first without the member with the smallest share of
// which it is not known that it is needed; then those that take the least and suffice.
func TestAProvenGroupIsCappedWithTheLeastLoss(t *testing.T) {
	for _, c := range []struct {
		needed []int
		want   []string
	}{
		{nil, []string{"/a", "/b"}},
		{[]int{2}, []string{"/a", "/c"}},
		{[]int{0, 1, 2}, []string{"/a", "/b"}}, // two thirds of the excess of 1 are enough for 1.4
	} {
		p := groupPlanner(nil)
		now := 600 * second
		p.Finding(now, together(now, true, c.needed...), none)
		if names, _ := capped(take(p)); !slices.Equal(names, c.want) {
			t.Errorf("needed %v: capped %v, want %v", c.needed, names, c.want)
		}
		if inc := p.Open()[0]; !strings.Contains(inc.Reason, "/a, /b and /c hurt /web only together") || len(inc.Findings) != 3 {
			t.Errorf("it says %q, findings %+v", inc.Reason, inc.Findings)
		}
	}
}
