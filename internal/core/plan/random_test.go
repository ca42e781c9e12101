package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// judgement is what an incident said and must not forget.
type judgement struct {
	level detect.Level
	vain  int // caps and trials
	named []sample.TaskKey
}

// TestAnIncidentRemembers, for any findings, caps and measurements: its level falls only
// by a cap in vain, a task that was named is in its findings until it is closed, no task
// is capped below Policy.MinLevel except for a trial, and a trial that helped proves
// nothing: detection decides that from all it remembers.
func TestAnIncidentRemembers(t *testing.T) {
	did := map[string]int{}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 15))
		policy := plan.Paper()
		policy.Mode, policy.MinLevel = plan.Mode(rng.IntN(3)), detect.Level(2+rng.IntN(2))
		policy.For, policy.Trial, policy.MaxCaps = time.Minute, time.Duration(rng.IntN(2))*30*time.Second, 1+rng.IntN(2)
		p, now := plan.New("machine", detect.Default, policy), 60*second
		known := past{}
		before := map[string]judgement{}
		for range 60 {
			switch rng.IntN(6) {
			case 0, 1, 2:
				f := randomFinding(rng, now)
				known.found(&f)
				p.Finding(now, f, known.window)
			case 3:
				cost := 1 + 4*float64(rng.IntN(2))
				for range 8 {
					now += 10 * second
					known.add(now, cost)
					p.Interval(now, sample.CPI, now, []detect.Reading{{Task: ptr(web()), Cost: cost}}, []detect.Verdict{{Judged: true, Sane: true, Outlier: cost > 2}})
					p.Tick(now)
					follow(t, p, now, policy, before, did)
				}
			case 4:
				now += sample.Millis(rng.IntN(90)) * second
				p.Tick(now)
			case 5:
				if rng.IntN(10) == 0 {
					p.Gone(now, web().Key)
				}
			}
			follow(t, p, now, policy, before, did)
		}
	}
	t.Log(did)
	for _, what := range []string{"cap", "trial", "named", "in turn", "vain", "proven by a cap", "trial that alone proves nothing", "closed", "weaker latest"} {
		if did[what] < 20 {
			t.Errorf("%s: %d", what, did[what])
		}
	}
}

func randomFinding(rng *rand.Rand, now sample.Millis) detect.Finding {
	f := detect.Finding{At: now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: now - 20*second,
		Result: detect.Result{Kind: []detect.Kind{detect.Nobody, detect.Neighbour, detect.Neighbour, detect.Indeterminate, detect.PhaseChange}[rng.IntN(5)],
			Threshold: 2, Bad: 3, Cost: 4, Pairs: 10}}
	for _, i := range rng.Perm(10)[:rng.IntN(5)] {
		s := detect.Suspect{Task: hog(), Grounds: detect.Grounds{Level: detect.Level(rng.IntN(2)), Basis: detect.ByStatistics, Probability: rng.Float64()}}
		s.Key.Inode, s.Name = uint64(i+2), sample.TaskName(fmt.Sprintf("/t%d", i))
		s.NeverCap = rng.IntN(5) == 0
		f.Suspects = append(f.Suspects, s)
	}
	if f.Kind == detect.Neighbour && len(f.Suspects) == 0 {
		f.Kind = detect.Nobody
	}
	if f.Kind == detect.Neighbour {
		f.Antagonists = 1 + rng.IntN(len(f.Suspects))
		for i := range f.Suspects[:f.Antagonists] {
			s := &f.Suspects[i]
			s.Level = detect.Level(2 + rng.IntN(2))
			if s.Level == detect.Proven {
				s.Basis, s.Share, s.Probability = detect.ByAccounts, rng.Float64(), 0
			}
		}
	}
	f.Trial = f.Kind == detect.Indeterminate && len(f.Suspects) > 0 && rng.IntN(2) == 0
	return f
}

// follow carries out the actions, and compares incidents with what they said before.
func follow(t *testing.T, p *plan.Planner, now sample.Millis, policy plan.Policy, before map[string]judgement, did map[string]int) {
	t.Helper()
	for p.Pending() {
		out := p.Take()
		for _, a := range out.Actions {
			switch a.Kind {
			case plan.Uncap:
				p.Lifted(now, a.ID, false)
				continue
			case plan.Cap:
				inc, _ := p.Incident(a.Incident)
				latest, trial := inc.Now(), strings.HasPrefix(a.Why, "trial: ")
				i := slices.IndexFunc(latest.Suspects, func(s detect.Suspect) bool { return s.Key == a.Task.Key })
				switch {
				case i < 0, !trial && latest.Suspects[i].Level < policy.MinLevel:
					t.Fatalf("capped: %+v in %+v", a, latest)
				case trial:
					did["trial"]++
				default:
					did["cap"]++
				}
				p.Applied(now, a.ID, nil)
			}
		}
		for i := range out.Incidents {
			before[out.Incidents[i].ID] = judged(t, &out.Incidents[i], before[out.Incidents[i].ID], did)
		}
	}
}

func judged(t *testing.T, inc *plan.Incident, was judgement, did map[string]int) judgement {
	t.Helper()
	is := judgement{level: inc.Level()}
	last, helped := map[sample.TaskKey]*plan.Round{}, map[sample.TaskKey]bool{}
	for _, r := range inc.Rounds {
		switch r.Outcome {
		case plan.Noise, plan.FalsePositive:
			is.vain++
			last[r.Suspect.Key] = r
		case plan.TruePositive:
			last[r.Suspect.Key] = r
			helped[r.Suspect.Key] = helped[r.Suspect.Key] || !r.Trial
		}
	}
	did["vain"] += is.vain - was.vain
	for i, f := range inc.Findings {
		is.named = append(is.named, f.Suspect.Key)
		switch r := last[f.Suspect.Key]; {
		case r != nil && r.Outcome != plan.TruePositive && f.Suspect.Level > detect.Possible:
			t.Fatalf("%s was capped in vain and is %s", f.Suspect.Name, f.Suspect.Level)
		case r != nil && r.Outcome == plan.TruePositive && !r.Trial && f.Suspect.Level != detect.Proven:
			t.Fatalf("capping %s helped and it is %s", f.Suspect.Name, f.Suspect.Level)
		case f.Suspect.Basis == detect.ByTrial && f.Suspect.Level == detect.Proven && !helped[f.Suspect.Key]:
			t.Fatalf("no cap on %s helped, and it is proven by one: %+v", f.Suspect.Name, inc.Rounds)
		case f.Suspect.Basis == detect.ByTrial && f.Suspect.Level == detect.Proven:
			did["proven by a cap"]++
		case r != nil && r.Outcome == plan.TruePositive && r.Trial && f.Suspect.Level == detect.Likely:
			did["trial that alone proves nothing"]++
		}
		if f.From > f.Until || i > 0 && f.From < inc.Findings[i-1].From {
			t.Fatalf("findings out of order: %+v", inc.Findings)
		}
	}
	for _, k := range was.named {
		if !slices.Contains(is.named, k) {
			t.Fatalf("%v was named and is forgotten: %+v", k, inc.Findings)
		}
	}
	now := inc.Now()
	for i, s := range now.Suspects {
		named := slices.IndexFunc(inc.Findings, func(f plan.Finding) bool { return f.Suspect.Key == s.Key })
		switch {
		case i >= now.Antagonists:
		case s.Level < detect.Likely || named < 0:
			t.Fatalf("%s is named as %s: %+v", s.Name, s.Level, inc.Findings)
		case inc.Findings[named].Until < now.Analysed:
			t.Fatalf("%s is named at %d: %+v", s.Name, now.Analysed, inc.Findings[named])
		}
	}
	// Suspects that it named, and that were capped in vain, a phase change may clear.
	cleared := inc.Kind == detect.PhaseChange && !slices.ContainsFunc(inc.Findings, func(f plan.Finding) bool { return f.Suspect.Level >= detect.Likely })
	switch {
	case is.level < was.level && is.vain == was.vain && inc.Kind != detect.PhaseChange:
		t.Fatalf("it was %s and is %s: %+v", was.level, is.level, inc)
	case (inc.Accused != 0) != (len(is.named) > 0), inc.Accused != 0 && inc.Kind != detect.Neighbour && !cleared:
		t.Fatalf("it named %d and says %s, accused at %d", len(is.named), inc.Kind, inc.Accused)
	case inc.Reason == "" || now.Reason == "":
		t.Fatalf("no reason is given: %+v", inc)
	}
	if len(is.named) > 0 {
		did["named"]++
	}
	if len(is.named) > 1 {
		did["in turn"]++
	}
	if inc.Closed != 0 {
		did["closed"]++
	}
	if now.Level() < inc.Level() {
		did["weaker latest"]++
	}
	return is
}
