package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/evaluation"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

const trialConfig = `
signals: [runq]
sampling: {duration: 200ms, period: 250ms}
spec: {min_samples: 20}
detect: {outlier_window: 2500ms, window: 5s, look_back: 1m}
enforce: {mode: advise, calm: 2500ms}
`

// TestTrialEndsWhereItsCapIsNotMeasured: each cap names the incident that it is for. If the
// agent does not measure it there, trial removes the cap and goes on.
func TestTrialEndsWhereItsCapIsNotMeasured(t *testing.T) {
	f := newFakeOf(t, `{"id":"inc-7","machine":"m","rule":"cpi2","signal":"cpi","victim":{"task":"/web","class":"latency-sensitive"},"began":1,"opened":2,"updated":3,"mode":"advise","spec_mean":1,"spec_stddev":0.1,`+
		`"kind":"neighbour","threshold":2,"cost":4,"suspects":[{"task":"/hog","class":"batch","level":"likely","method":"correlation","correlation":0.5}],"antagonists":1,"rounds":[]}`+"\n")
	r := quell(t, clitest.Env(f.socket), strings.Fields("trial --budget 1 --reason test --within 24h --poll 1ms")...)
	if r.Code != app.ExitOK || !strings.Contains(r.Err, "the agent does not measure it for inc-7") || !strings.Contains(r.Err, "1 of 1 caps were made") {
		t.Errorf("exit code %d, it says %q", r.Code, r.Err)
	}
	asked := strings.Join(f.requests(), "\n")
	for _, want := range []string{`"cap":{"task":"/hog","rate":0.1,"for":"5m","incident":"inc-7"}`, `"uncap":{"task":"/hog"}`} {
		if !strings.Contains(asked, want) {
			t.Errorf("%s is not in\n%s", want, asked)
		}
	}
}

// TestTrialCapsNoneForTheUnprotected: an operator has said that no task may be capped for a victim.
// That holds for trials too: the suspect of the next incident is capped.
func TestTrialCapsNoneForTheUnprotected(t *testing.T) {
	const line = `{"id":"%s","machine":"m","rule":"cpi2","signal":"cpi","victim":{"task":"%s","class":"latency-sensitive"%s},"began":1,"opened":%d,"updated":3,"mode":"advise","spec_mean":1,"spec_stddev":0.1,` +
		`"kind":"neighbour","threshold":2,"cost":4,"suspects":[{"task":"%s","class":"batch","level":"likely","method":"correlation","correlation":0.5}],"antagonists":1,"rounds":[]}` + "\n"
	f := newFakeOf(t, fmt.Sprintf(line, "inc-6", "/tested", `,"unprotected":true`, 1, "/scan")+fmt.Sprintf(line, "inc-7", "/web", "", 2, "/hog"))
	r := quell(t, clitest.Env(f.socket), strings.Fields("trial --budget 1 --reason test --within 24h --poll 1ms")...)
	asked := strings.Join(f.requests(), "\n")
	if r.Code != app.ExitOK || strings.Contains(asked, `"task":"/scan"`) || !strings.Contains(asked, `"cap":{"task":"/hog","rate":0.1,"for":"5m","incident":"inc-7"}`) {
		t.Errorf("exit code %d, it says %q and asked\n%s", r.Code, r.Err, asked)
	}
}

// What the agent refuses now may be possible after a lease: the pair was not tried.
func TestTrialAsksAgainForWhatWasRefused(t *testing.T) {
	f := newFakeOf(t, `{"id":"inc-7","machine":"m","rule":"cpi2","signal":"cpi","victim":{"task":"/web","class":"latency-sensitive"},"began":1,"opened":2,"updated":3,"mode":"advise","spec_mean":1,"spec_stddev":0.1,`+
		`"kind":"neighbour","threshold":2,"cost":4,"suspects":[{"task":"/busy","class":"batch","level":"likely","method":"correlation","correlation":0.5}],"antagonists":1,"rounds":[]}`+"\n")
	r := quell(t, clitest.Env(f.socket), strings.Fields("trial --budget 1 --reason test --for 1s --within 240s --poll 10ms")...)
	asked := strings.Count(strings.Join(f.requests(), "\n"), `"cap":{"task":"/busy"`)
	if r.Code != app.ExitOK || asked != 2 || !strings.Contains(r.Err, "/busy was not capped") || !strings.Contains(r.Err, "1 of 1 caps were made") {
		t.Errorf("asked %d times; exit code %d, it says %q", asked, r.Code, r.Err)
	}
}

// Real processes on one CPU, and an agent that only advises: trial caps the suspect of
// the incident, measures the effect, and restores the limit.
func TestTrialCapsARealSuspect(t *testing.T) {
	var loud *workload.Proc
	tree, env, _, _ := startAgentOver(t, trialConfig, 100, func(tree *workload.Tree) {
		on := func(task string, s workload.Spec) *workload.Proc {
			p, err := tree.Start(task, s, workload.StartOptions{CPUs: sample.SetOf(0)})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Begin(); err != nil {
				t.Fatal(err)
			}
			return p
		}
		on("victim", workload.Default(workload.Serve))
		// It takes three quarters of the CPU: more than what tests that run at the same time can take.
		busy := workload.Default(workload.Spin)
		busy.Duty = 1
		loud = on("loud", busy)
		if err := tree.Weigh("loud", 3); err != nil {
			t.Fatal(err)
		}
		send(t, loud, syscall.SIGSTOP)
	})
	defer func() {
		if t.Failed() {
			t.Log(quell(t, env, "top", "--once").Out, quell(t, env, "incidents").Out)
		}
	}()
	learnt(t, env)
	send(t, loud, syscall.SIGCONT)
	r := quell(t, env, strings.Fields("trial --budget 1 --any --for 4s --within 240s --poll 100ms --reason test --json")...)
	var e evaluation.Report
	if err := json.Unmarshal([]byte(r.Out), &e); err != nil || r.Code != app.ExitOK {
		t.Fatalf("exit code %d, %v, %q", r.Code, err, r.Err)
	}
	if !strings.Contains(r.Err, "1 of 1 caps were made") || e.Incidents != 1 || e.OutcomeRate[0].TruePositive.N != 1 {
		t.Errorf("%+v, it says %q", e.OutcomeRate, r.Err)
	}
	var all []incident.Record // others may be caused by stolen time
	if err := json.Unmarshal([]byte(quell(t, env, "incidents", "--json").Out), &all); err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(i incident.Record) bool { return len(i.Rounds) == 0 })
	if len(all) != 1 {
		t.Fatalf("%d incidents with a cap", len(all))
	}
	if c := all[0].Rounds[0]; c.By == "quell" || !strings.Contains(c.Why, "trial: test") || c.Suspect.Name != sample.TaskName(tree.Path("loud")) {
		t.Errorf("%+v", c)
	}
	if got := strings.Fields(limit(t, tree, "loud")); got[0] != "-1" && got[0] != "max" {
		t.Errorf("the limit is %q after the trial", got)
	}
}
