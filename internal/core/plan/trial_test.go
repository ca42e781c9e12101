package plan_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// unsure is a finding that asks for a trial of the given suspect.
func unsure(at sample.Millis, victim, suspect sample.Task) detect.Finding {
	return detect.Finding{At: at, Signal: sample.CPI, Trial: true, Victim: victim, Spec: spec.Spec{StdDev: 0.5}, First: at - 20*second,
		Result: detect.Result{Kind: detect.Indeterminate, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10, Suspects: []detect.Suspect{{Task: suspect, Correlation: 0.2}}}}
}

func none(sample.TaskKey) []detect.Point { return nil }

// TestATrialIsMadeOnlyWherePolicyAllowsIt, of a suspect that may be capped, for a victim
// that may be helped.
func TestATrialIsMadeOnlyWherePolicyAllowsIt(t *testing.T) {
	never, batch, served := hog(), web(), hog()
	never.NeverCap, batch.Class, served.Class = true, sample.Batch, sample.LatencySensitive
	for _, c := range []struct {
		name            string
		change          func(*plan.Policy)
		victim, suspect sample.Task
		acts            bool
		says            string
	}{
		{"allowed", nil, web(), hog(), true, "cap /hog to 0.1 CPU-s/s for 3m0s as a trial"},
		{"the paper has none", func(p *plan.Policy) { p.Trial = plan.Paper().Trial }, web(), hog(), false, "but chance or"},
		{"advise only says it", func(p *plan.Policy) { p.Mode = plan.Advise }, web(), hog(), false, "cap /hog"},
		{"off", func(p *plan.Policy) { p.Mode = plan.Off }, web(), hog(), false, "but chance or"},
		{"no longer than a cap", func(p *plan.Policy) { p.Trial = time.Hour; p.For = 3 * time.Minute }, web(), hog(), true, "for 3m0s"},
		{"never-cap", nil, web(), never, false, "never-cap"},
		{"latency-sensitive", nil, web(), served, false, "latency-sensitive"},
		{"no trial for a batch victim", nil, batch, hog(), false, "not protected"},
		{"as many caps as allowed", func(p *plan.Policy) { p.MaxCaps = 0 }, web(), hog(), false, "the limit of caps"},
		{"no trials left", func(p *plan.Policy) { p.Trials = 0 }, web(), hog(), false, "the limit of trials is reached (0)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy := plan.Paper()
			policy.Mode, policy.Trial = plan.On, 3*time.Minute
			if c.change != nil {
				c.change(&policy)
			}
			p := plan.New("machine", detect.EvidenceMethod, policy)
			p.Finding(60*second, unsure(60*second, c.victim, c.suspect), none)
			out := take(p)
			inc := out.Incidents[0]
			if (len(out.Actions) == 1) != c.acts {
				t.Errorf("actions %+v", out.Actions)
			}
			if said := inc.Reason + inc.Advice + inc.NotDone; !strings.Contains(said, c.says) {
				t.Errorf("it says %q", said)
			}
			if c.acts {
				if r := inc.Rounds[0]; !r.Trial || r.Until != 240*second {
					t.Errorf("round %+v", r)
				}
			}
		})
	}
}

// TestAChangeIsLearntAfterATrialInVain: a task changes for good. A trial is made before that is known, and is
// in vain: the spec follows the change all the same, and the incident ends.
func TestAChangeIsLearntAfterATrialInVain(t *testing.T) {
	policy := plan.Paper()
	policy.Mode, policy.Trial = plan.On, time.Minute
	p := plan.New("machine", detect.EvidenceMethod, policy)
	now, known := 60*second, past{}
	f := unsure(now, web(), hog())
	known.found(&f)
	p.Finding(now, f, known.window)
	p.Applied(now, take(p).Actions[0].ID, nil)
	for range 3 { // the first sample is left out
		now += 10 * second
		known.add(now, 4)
		sampled(p, now, now, sample.CPI, 4)
	}
	now += 60 * second
	p.Tick(now)
	p.Lifted(now, take(p).Actions[0].ID, false)
	now += 1800 * second
	p.Finding(now, detect.Finding{At: now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{StdDev: 0.5}, First: now - 20*second,
		Result: detect.Result{Kind: detect.PhaseChange, Change: detect.NewLevel, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10}}, known.window)
	if inc := p.Open()[0]; len(inc.Rounds) != 1 || inc.Rounds[0].Outcome != plan.Noise || !p.Follows(sample.CPI, web().Key) {
		t.Errorf("rounds %+v, it follows: %t", inc.Rounds[0], inc.Follows)
	}
	// The task that was tried may be one of several antagonists: once there are good intervals, they tell.
	for _, allBad := range []bool{true, false} {
		now += 60 * second
		p.Finding(now, detect.Finding{At: now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{StdDev: 0.5}, First: now - 20*second, AllBad: allBad,
			Result: detect.Result{Kind: detect.Nobody, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10}}, known.window)
		if got := p.Follows(sample.CPI, web().Key); got != allBad {
			t.Errorf("no task is named, no interval is good: %t; it follows: %t", allBad, got)
		}
	}
}

// TestHowLongAChangeIsFollowed: until it is normal, although some intervals are good on the way there. What was bad
// when it was found is followed after six hours in which no task was named; what was good before is not.
func TestHowLongAChangeIsFollowed(t *testing.T) {
	const hour = 3600 * second
	type analysis struct {
		at      sample.Millis
		kind    detect.Kind
		allBad  bool
		follows bool // after it
	}
	for name, course := range map[string][]analysis{
		"until a task is named": {{0, detect.PhaseChange, false, false}, {hour, detect.PhaseChange, false, true}, {2 * hour, detect.Nobody, false, true},
			{3 * hour, detect.Neighbour, false, false}, {4 * hour, detect.Nobody, true, false}},
		"no good interval is left before it is followed": {{0, detect.PhaseChange, false, false}, {hour / 4, detect.Nobody, true, false}, {hour, detect.Nobody, true, true}},
		"taken back before it was followed":              {{0, detect.PhaseChange, false, false}, {hour / 4, detect.Nobody, false, false}, {hour, detect.Nobody, true, false}},
		"a release": {{0, detect.Nobody, true, false}, {5 * hour, detect.Nobody, true, false}, {6 * hour, detect.Nobody, true, true},
			{7 * hour, detect.Nobody, false, true}, {8 * hour, detect.Indeterminate, true, false}},
		"good before":          {{0, detect.Nobody, false, false}, {7 * hour, detect.Nobody, true, false}},
		"a release, and named": {{0, detect.Nobody, true, false}, {hour, detect.Neighbour, true, false}, {7 * hour, detect.Nobody, true, false}},
	} {
		p := plan.New("machine", detect.EvidenceMethod, plan.Paper())
		for _, a := range course {
			now := 60*second + a.at
			f := detect.Finding{At: now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: now - 20*second, AllBad: a.allBad,
				Result: detect.Result{Kind: a.kind, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10}}
			if a.kind == detect.Neighbour {
				f.Suspects, f.Antagonists = []detect.Suspect{{Task: hog(), Grounds: detect.Grounds{Level: detect.Likely}}}, 1
			}
			p.Finding(now, f, none)
			if got := p.Follows(sample.CPI, web().Key); got != a.follows {
				t.Errorf("%s: after %s at %d it follows: %t", name, a.kind, a.at, got)
			}
		}
	}
}

// TestACappedSuspectIsNotTried, and the reason is that, not a limit of caps that is far away.
func TestACappedSuspectIsNotTried(t *testing.T) {
	policy := plan.Paper()
	policy.Mode, policy.Trial = plan.On, 3*time.Minute
	p := plan.New("machine", detect.EvidenceMethod, policy)
	db := web()
	db.Key.Inode, db.Name = 9, "/db"
	for _, victim := range []sample.Task{web(), db} {
		p.Finding(60*second, unsure(60*second, victim, hog()), none)
	}
	out := take(p)
	if inc := p.Open()[1]; len(out.Actions) != 1 || inc.Victim.Name != "/db" || inc.NotDone != "not tried: it is capped already" {
		t.Errorf("%d caps; for %s: %q", len(out.Actions), inc.Victim.Name, inc.NotDone)
	}
}

// TestATrialInVainIsNotMadeAgain, nor one that could not be made. An incident has no more
// trials than the policy allows.
func TestATrialInVainIsNotMadeAgain(t *testing.T) {
	policy := plan.Paper()
	policy.Mode, policy.Trial, policy.Trials = plan.On, time.Minute, 2
	p := plan.New("machine", detect.EvidenceMethod, policy)
	now, known := 60*second, past{}
	ask := func(inode uint64) int {
		s := hog()
		s.Key.Inode = inode
		f := unsure(now, web(), s)
		known.found(&f)
		p.Finding(now, f, known.window)
		out := take(p)
		for _, a := range out.Actions {
			var err error
			if inode == 7 {
				err = errors.New("no such file")
			}
			p.Applied(now, a.ID, err)
		}
		take(p)
		return len(out.Actions)
	}
	over := func() {
		for range 3 { // the first sample is left out
			now += 10 * second
			known.add(now, 4)
			sampled(p, now, now, sample.CPI, 4)
		}
		now += 60 * second
		p.Tick(now)
		for _, a := range take(p).Actions {
			p.Lifted(now, a.ID, false)
		}
	}
	if n := ask(2); n != 1 {
		t.Fatalf("%d actions", n)
	}
	over()
	if n := ask(2); n != 0 {
		t.Error("what was in vain is tried again")
	}
	if n := ask(7); n != 1 {
		t.Errorf("%d actions for another suspect", n)
	}
	if n := ask(3); n != 0 {
		t.Error("a third trial of two")
	}
}
