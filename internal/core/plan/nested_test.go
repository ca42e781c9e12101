package plan_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// holding is /hog with a task in its cgroup that may not be limited.
func holding() sample.Task {
	t := hog()
	t.Holds = "/hog/web"
	return t
}

// TestATaskThatHoldsAnotherIsNotCapped: the next antagonist is; and if there is none, the
// incident names the task that is in the way.
func TestATaskThatHoldsAnotherIsNotCapped(t *testing.T) {
	grounds := detect.Grounds{Level: detect.Likely, Basis: detect.ByFormula}
	first := detect.Suspect{Task: holding(), Grounds: grounds, Correlation: 0.9}
	next := detect.Suspect{Task: sample.Task{Key: sample.TaskKey{Inode: 3}, Name: "/next", Class: sample.Batch}, Grounds: grounds, Correlation: 0.5}
	for name, suspects := range map[string][]detect.Suspect{"alone": {first}, "with another": {first, next}} {
		policy := plan.Paper()
		policy.Mode = plan.On
		p := plan.New("machine", detect.Quell, policy)
		p.Finding(100*second, detect.Finding{At: 100 * second, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{StdDev: 0.5}, First: 80 * second,
			Result: detect.Result{Kind: detect.Neighbour, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10, Suspects: suspects, Antagonists: len(suspects)}}, func(sample.TaskKey) []detect.Point { return nil })
		out := take(p)
		switch {
		case len(suspects) == 2:
			if len(out.Actions) != 1 || out.Actions[0].Task.Name != "/next" {
				t.Errorf("%s: %+v", name, out.Actions)
			}
		case len(out.Actions) > 0 || !strings.Contains(out.Incidents[0].NotDone, "/hog: its cgroup contains /hog/web, which may not be limited"):
			t.Errorf("%s: %+v, %q", name, out.Actions, out.Incidents[0].NotDone)
		}
	}
}

// TestAnOperatorsCapOfATaskThatHoldsAnother is refused, and says which one that is.
func TestAnOperatorsCapOfATaskThatHoldsAnother(t *testing.T) {
	p := plan.New("machine", detect.Quell, plan.Paper())
	terms := command.Terms{Rate: 0.1, For: command.Duration(time.Minute)}
	if _, err := p.CapFor(0, holding(), terms, "", "ann", "too loud", nil); !errors.Is(err, plan.ErrRefused) || !strings.Contains(err.Error(), "contains /hog/web") {
		t.Errorf("got %v", err)
	}
	if _, err := p.CapFor(0, hog(), terms, "", "ann", "too loud", nil); err != nil {
		t.Error(err)
	}
	if out := take(p); len(out.Actions) != 1 {
		t.Errorf("%+v", out.Actions)
	}
}

// TestACapEndsWhenATaskIsInTheWay: at the next interval, or as soon as the host says so.
func TestACapEndsWhenATaskIsInTheWay(t *testing.T) {
	for name, tell := range map[string]func(*plan.Planner, sample.Task){
		"interval": func(p *plan.Planner, task sample.Task) {
			p.Interval(20*second, sample.RunQ, 20*second, []detect.Reading{{Task: ptr(web())}, {Task: &task}}, make([]detect.Verdict, 2))
		},
		"host": func(p *plan.Planner, task sample.Task) { p.Review(20*second, task) },
	} {
		p, _ := accused(t, 10*second, suspects())
		tell(p, hog())
		if out := take(p); len(out.Actions) > 0 {
			t.Errorf("%s: nothing is in the way, and %+v", name, out.Actions)
		}
		tell(p, holding())
		tell(p, holding()) // the uncap is under way
		out := take(p)
		if len(out.Actions) != 1 || out.Actions[0].Kind != plan.Uncap || !strings.Contains(out.Actions[0].Why, "/hog/web") {
			t.Errorf("%s: %+v", name, out.Actions)
		}
	}
}

// TestACapEndsWithTheVictimsProtection: quell's own, at the next interval or as soon as the host says
// so. It would be extended for as long as it helps otherwise. An operator's cap for the victim stays.
func TestACapEndsWithTheVictimsProtection(t *testing.T) {
	unprotected := web()
	unprotected.Unprotected = true
	batch := web()
	batch.Class = sample.Batch
	for name, victim := range map[string]sample.Task{"unprotected": unprotected, "of another class": batch, "as it was": web()} {
		for how, tell := range map[string]func(*plan.Planner){
			"interval": func(p *plan.Planner) {
				p.Interval(20*second, sample.RunQ, 20*second, []detect.Reading{{Task: &victim}, {Task: ptr(hog())}}, make([]detect.Verdict, 2))
			},
			"host": func(p *plan.Planner) { p.Review(20*second, victim) },
		} {
			p, inc := accused(t, 10*second, suspects())
			other := sample.Task{Key: sample.TaskKey{Inode: 7}, Name: "/other", Class: sample.Batch}
			if _, err := p.CapFor(10*second, other, command.Terms{Rate: 0.1, For: command.Duration(time.Minute)}, inc.ID, "ann", "r", none); err != nil {
				t.Fatal(err)
			}
			p.Applied(10*second, take(p).Actions[0].ID, nil)
			tell(p)
			tell(p) // the uncap is under way
			out := take(p)
			ended := len(out.Actions) == 1 && out.Actions[0].Kind == plan.Uncap && out.Actions[0].Task.Name == "/hog" && strings.Contains(out.Actions[0].Why, "protect")
			if ended == victim.MayBeHelped() || !ended && len(out.Actions) > 0 {
				t.Errorf("%s, %s: %+v", name, how, out.Actions)
			}
		}
	}
}
