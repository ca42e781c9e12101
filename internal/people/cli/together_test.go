//go:build groups

package cli

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var cases = flag.Int("cases", 10, "how often three real tasks hurt a fourth together")

const togetherConfig = `
signals: [runq]
sampling: {duration: 200ms, period: 250ms}
spec: {min_samples: 60}
detect: {outlier_window: 2500ms, window: 5s, look_back: 1m}
enforce: {mode: on, groups: true, rate: 0.05, trial: 3s, for: 4s, calm: 4s}
`

// TestThreeRealTasksHurtOnlyTogether: real processes on one CPU, and the shipped agent. Three batch
// tasks work one at a time, which is the victim's normal life: none of them alone is an incident.
// Then they work at the same time. They must be named and capped together, the victim must be
// below its threshold under that, no other task may be limited, and all limits must be gone
// afterwards.
func TestThreeRealTasksHurtOnlyTogether(t *testing.T) {
	good := 0
	for i := range *cases {
		if t.Run(fmt.Sprint(i), together) {
			good++
		}
	}
	t.Logf("named, capped together, relieved and undone in %d of %d", good, *cases)
}

func together(t *testing.T) {
	members := []string{"a", "b", "c"}
	procs := map[string]*workload.Proc{}
	tree, env, _, _ := startAgentOver(t, togetherConfig, 100, func(tree *workload.Tree) {
		on := func(task string, s workload.Spec) {
			p, err := tree.Start(task, s, workload.StartOptions{CPUs: sample.SetOf(0)})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Begin(); err != nil {
				t.Fatal(err)
			}
			procs[task] = p
		}
		on("victim", workload.Default(workload.Serve))
		quiet := workload.Default(workload.Spin)
		quiet.Duty = 0.05
		on("innocent", quiet)
		for _, m := range members {
			on(m, workload.Default(workload.Spin))
			send(t, procs[m], syscall.SIGSTOP)
		}
	})
	all := func() (all []incident.Record) {
		t.Helper()
		if err := json.Unmarshal([]byte(quell(t, env, "incidents", "--json").Out), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	defer func() {
		if t.Failed() {
			t.Log(quell(t, env, "top", "--once").Out, quell(t, env, "incidents").Out)
			for _, inc := range all() {
				t.Logf("%s: %s, %s; %s", inc.ID, inc.Kind, inc.Reason, inc.NotDone)
				for _, r := range inc.Rounds {
					t.Logf("  %s, trial %v: %.3g, then %.3g in %d samples, %s", r.Names(), r.Trial, float64(r.CostBefore), float64(r.CostUnder), r.Samples, r.Outcome)
				}
			}
		}
	}()
	// takeTurns lets one of the three work at a time, each for a while, until done.
	takeTurns := func(each time.Duration, done func() bool) {
		for turn := 0; !done(); turn++ {
			p := procs[members[turn%len(members)]]
			send(t, p, syscall.SIGCONT)
			over := time.After(each)
			<-over
			send(t, p, syscall.SIGSTOP)
		}
	}
	takeTurns(500*time.Millisecond, func() bool { return hasLearnt(t, env) })

	turns := 0
	takeTurns(3*time.Second, func() bool { turns++; return turns > len(members) })
	for _, inc := range all() {
		if len(inc.Rounds) > 0 || len(inc.Findings) > 0 {
			t.Fatalf("one of them alone is an incident: %s, %+v", inc.Reason, inc.Findings)
		}
	}

	for _, m := range members {
		send(t, procs[m], syscall.SIGCONT)
	}
	var names []sample.TaskName
	for _, m := range members {
		names = append(names, sample.TaskName(tree.Path(m)))
	}
	isMember := func(n sample.TaskName) bool { return slices.Contains(names, n) }
	var found incident.Record
	quelltest.Until(t, "the three are named and capped together, and the victim is below its threshold", func() bool {
		for _, inc := range all() {
			named := 0
			for _, f := range inc.Findings {
				if isMember(f.Suspect.Name) {
					named++
				}
			}
			for _, r := range inc.Rounds {
				if !r.Trial && len(r.Tasks()) == len(members) && r.Outcome == plan.TruePositive && float64(r.CostUnder) <= inc.Threshold && named == len(members) {
					found = inc
					return true
				}
			}
		}
		return false
	})
	t.Logf("%s", found.Reason)
	for _, inc := range all() {
		for _, r := range inc.Rounds {
			t.Logf("  %s, trial %v: %.3g, then %.3g in %d samples, %s; threshold %.3g", r.Names(), r.Trial, float64(r.CostBefore), float64(r.CostUnder), r.Samples, r.Outcome, inc.Threshold)
		}
	}

	for _, m := range members {
		send(t, procs[m], syscall.SIGSTOP)
	}
	quelltest.Until(t, "every limit is gone", func() bool {
		return !slices.ContainsFunc(members, func(m string) bool { return strings.HasPrefix(limit(t, tree, m), "5000 ") })
	})
	for _, inc := range all() {
		for _, r := range inc.Rounds {
			for _, c := range r.Tasks() {
				if !isMember(c.Suspect.Name) {
					t.Errorf("%s was capped", c.Suspect.Name)
				}
			}
		}
		for _, f := range inc.Findings {
			if !isMember(f.Suspect.Name) {
				t.Errorf("%s is accused: %s", f.Suspect.Name, f.Suspect.Why)
			}
		}
	}
	for _, task := range append(members, "victim", "innocent") {
		if l := limit(t, tree, task); !strings.HasPrefix(l, "-1") && !strings.HasPrefix(l, "max") {
			t.Errorf("%s is left with %s", task, l)
		}
	}
}
