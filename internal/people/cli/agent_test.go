package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// ownConfig is the state and tasks part of every test agent's configuration.
const ownConfig = `
state_dir: %[1]s
journals: %[1]s/journals
exclusive: false
socket: %[1]s/agent.sock
listen: ""
tick: 25ms
rules:
  - {match: "%[2]s/victim", job: victim, class: latency-sensitive}
  - {match: "%[2]s/loud", job: loud, class: batch}
  - {match: "%[2]s/*", job: $1, class: batch}
`

// deadline is a guard against an agent that hangs.
const deadline = 4 * time.Minute

// startAgent starts the real agent over two real tasks, victim and loud.
func startAgent(t *testing.T) (tree *workload.Tree, env map[string]string, state string, stop func()) {
	t.Helper()
	return startAgentOver(t, "signals: [cpt, runq]\nsampling: {duration: 100ms, period: 300ms}\n", 0, func(tree *workload.Tree) {
		begin(t, tree, "victim", workload.Default(workload.Serve))
		begin(t, tree, "loud", workload.Default(workload.Spin))
	})
}

// begin starts a workload and lets it run.
func begin(t *testing.T, tree *workload.Tree, task string, s workload.Spec) *workload.Proc {
	t.Helper()
	p, err := tree.Start(task, s, workload.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	return p
}

// startAgentOver builds and starts the real agent, with more configuration, over the
// tasks that cast starts. It returns how to talk to it and how to stop it.
func startAgentOver(t *testing.T, more string, weight int, cast func(*workload.Tree)) (tree *workload.Tree, env map[string]string, state string, stop func()) {
	t.Helper()
	quelltest.Need(t, quelltest.Root)
	agent := shippedAgent.build(t) // before any workload runs
	if weight > 1 {
		quelltest.Alone(t, quelltest.CPUs)
	}
	dir := t.TempDir()
	tree, err := workload.OpenTree("quell-test-cli", workload.TreeOptions{Weight: weight})
	var lacks *workload.MissingError
	if errors.As(err, &lacks) {
		quelltest.Skip(t, "cgroups", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	cast(tree)
	state = filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, ownConfig+more, state, tree.Top()), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(agent, "--config", config)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	running := true
	stop = func() {
		if !running {
			return
		}
		running = false
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the agent ended with %v:\n%s", err, log.String())
			}
		case <-time.After(deadline):
			cmd.Process.Kill()
			t.Errorf("the agent did not end: %v\n%s", <-ended, log.String())
		}
	}
	t.Cleanup(stop) // before the tree is closed
	env = clitest.Env(filepath.Join(state, "agent.sock"))
	quelltest.Until(t, "the agent answers", quelltest.Paced(func() bool { return quell(t, env, "status").Code == app.ExitOK }))
	return tree, env, state, stop
}

// program is a program that is built once, when the first test needs it.
type program struct {
	name string
	once sync.Once
	path string
}

var (
	shippedAgent = program{name: "quell-agent"}
	shippedQuell = program{name: "quell"}
)

// build returns the program's path.
func (p *program) build(t *testing.T) string {
	t.Helper()
	p.once.Do(func() { p.path = quelltest.Program(t, p.name) })
	return p.path
}

// learnt waits until the victim's job has a spec.
func learnt(t *testing.T, env map[string]string) {
	t.Helper()
	quelltest.Until(t, "the victim's job has a spec", quelltest.Paced(func() bool { return hasLearnt(t, env) }))
}

// hasLearnt reports whether the victim's job has a spec.
func hasLearnt(t *testing.T, env map[string]string) bool {
	t.Helper()
	var all []api.TaskView
	if err := json.Unmarshal([]byte(quell(t, env, "top", "--once", "--json").Out), &all); err != nil {
		return false // the agent has no tasks yet
	}
	return slices.ContainsFunc(all, func(v api.TaskView) bool {
		ready := func(s api.SignalView) bool { return s.Spec.State == spec.Ready }
		return strings.HasSuffix(string(v.Name), "/victim") && slices.ContainsFunc(v.Costs, ready)
	})
}

// limit reads a task's CPU limit from the kernel.
func limit(t *testing.T, tree *workload.Tree, task string) string {
	t.Helper()
	dir, v1 := tree.CPUDir(task)
	files := []string{"cpu.max"}
	if v1 {
		files = []string{"cpu.cfs_quota_us", "cpu.cfs_period_us"}
	}
	var values []string
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, strings.Fields(string(text))...)
	}
	return strings.Join(values, " ")
}

func TestTheRealAgent(t *testing.T) {
	tree, env, state, stop := startAgent(t)
	ok := func(args ...string) string {
		t.Helper()
		r := quell(t, env, args...)
		if r.Code != app.ExitOK {
			t.Fatalf("%q: exit code %d: %s", args, r.Code, r.Err)
		}
		return r.Out
	}
	no := func(sign string, args ...string) {
		t.Helper()
		if r := quell(t, env, args...); r.Code != app.ExitNegative || !strings.Contains(r.Err, sign) {
			t.Errorf("%q: exit code %d, want %d with %q:\n%s", args, r.Code, app.ExitNegative, sign, r.Err)
		}
	}
	task := func(name string) (v api.TaskView) {
		t.Helper()
		var all []api.TaskView
		if err := json.Unmarshal([]byte(ok("top", "--once", "--json")), &all); err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(all, func(v api.TaskView) bool { return v.Name == sample.TaskName(tree.Path(name)) }); i >= 0 {
			return all[i]
		}
		return v
	}
	quelltest.Until(t, "the loud task is seen to use the CPU", quelltest.Paced(func() bool { return task("loud").CPU > 0.05 }))
	quelltest.Until(t, "the victim's cost is known", quelltest.Paced(func() bool {
		return slices.ContainsFunc(task("victim").Costs, func(v api.SignalView) bool { return v.Signal == sample.CPT && v.Cost > 0 })
	}))
	for _, sign := range []string{"TASK", "CPT", "RUNQ", "/loud", "/victim", "latency-sensitive"} {
		if out := ok("top", "--once"); !strings.Contains(out, sign) {
			t.Errorf("top lacks %q:\n%s", sign, out)
		}
	}

	free := limit(t, tree, "loud")
	ok("cap", "loud", "--rate", "0.2", "--for", "10m", "--reason", "the test wants it")
	var quota, period float64
	if n, err := fmt.Sscan(limit(t, tree, "loud"), &quota, &period); n != 2 || err != nil || quota/period != 0.2 {
		t.Errorf("under a cap of 0.2 the limit is %q", limit(t, tree, "loud"))
	}
	if !task("loud").Capped {
		t.Error("top does not show the cap")
	}
	var st api.Status
	if err := json.Unmarshal([]byte(ok("status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	if len(st.Caps) != 1 || st.Caps[0].Why != "the test wants it" || !strings.Contains(st.Caps[0].By, fmt.Sprint(os.Getpid())) {
		t.Errorf("caps are %+v", st.Caps)
	}
	if out := ok("status"); !strings.Contains(out, "1 in force") {
		t.Errorf("status:\n%s", out)
	}
	no("capped already", "cap", "loud", "--rate", "0.1", "--for", "1m", "--reason", "again")
	no("latency-sensitive", "cap", "victim", "--rate", "0.1", "--for", "1m", "--reason", "not this one")
	no("unknown task", "uncap", "nobody", "--reason", "mistyped")
	ok("uncap", "loud", "--reason", "enough")
	if got := limit(t, tree, "loud"); got != free {
		t.Errorf("after uncap the limit is %q, was %q", got, free)
	}

	ok("protect", "loud", "--reason", "for a while")
	if !task("loud").Protected {
		t.Error("it is not protected")
	}
	ok("protect", "loud", "--off", "--reason", "no more")
	if task("loud").Protected {
		t.Error("it is still protected")
	}
	if got := ok("enforcement"); got != "advise (configuration)\n" {
		t.Errorf("enforcement is %q at first", got)
	}
	ok("enforcement", "on", "--reason", "trusted")
	if got := ok("enforcement"); !strings.HasPrefix(got, "on (override of ") || !strings.Contains(got, "(trusted)") {
		t.Errorf("enforcement is %q", got)
	}
	if got := ok("decisions"); !strings.Contains(got, "enforcement on") {
		t.Errorf("decisions are %q", got)
	}
	ok("enforcement", "--reset", "--reason", "as configured")
	if got := ok("enforcement"); got != "advise (configuration)\n" {
		t.Errorf("enforcement is %q after the reset", got)
	}

	var asked, read []incident.Record
	if err := errors.Join(json.Unmarshal([]byte(ok("incidents", "--json")), &asked),
		json.Unmarshal([]byte(ok("incidents", "--json", "--state-dir", state)), &read)); err != nil || asked == nil || read == nil {
		t.Errorf("incidents: %v", err)
	}

	ok("cap", "loud", "--rate", "0.3", "--for", "10m", "--reason", "and the agent stops")
	stop()
	if got := limit(t, tree, "loud"); got != free {
		t.Errorf("after the agent stopped the limit is %q, was %q", got, free)
	}
	if r := quell(t, env, "status"); r.Code != app.ExitUsage || !strings.Contains(r.Err, "what to do: start quell-agent") {
		t.Errorf("without the agent: exit code %d: %s", r.Code, r.Err)
	}
}
