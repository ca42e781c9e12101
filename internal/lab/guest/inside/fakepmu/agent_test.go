//go:build inguest

package fakepmu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// shrunk scales one of the paper's times for these tests: all times by the same factor,
// so that nothing else changes.
func shrunk(paper time.Duration) time.Duration { return paper / 25 }

// samples is the number that the spec needs; the paper's 100 would take another two
// minutes of guest time.
const samples = 50

// period is the time from one sample to the next.
var period = shrunk(time.Minute)

// agent is the shipped program, run for one tree.
type agent struct {
	*api.Client
	t   *testing.T
	dir string // state, socket, configuration
	cmd *exec.Cmd
	log bytes.Buffer
}

// newAgent configures an agent with the paper's values, except that a machine's own
// history is sufficient, that it acts, and that the rule uses the paper's correlation and
// accuses at the third outlier. The victim is the tree's "web".
func newAgent(t *testing.T, top string) *agent {
	t.Helper()
	a := &agent{t: t, dir: t.TempDir()}
	a.Client = api.NewClient(a.dir + "/agent.sock")
	text := fmt.Sprintf(`state_dir: %q
socket: %q
listen: ""
signals: [cpi]
tick: 200ms
sampling: {duration: %s, period: %s, max_tax: 0}
spec: {min_samples: %d, save: %s}
detect: {rule: quell, outlier_window: %s, window: %s, pace: %s}
enforce: {mode: "on", for: %s, calm: %s}
rules:
  - {match: "%s/web", job: web, class: latency-sensitive}
  - {match: "%s/*", class: batch}
`, a.dir, a.dir+"/agent.sock", shrunk(10*time.Second), period,
		samples, shrunk(5*time.Minute), shrunk(5*time.Minute), shrunk(10*time.Minute), shrunk(time.Second), shrunk(5*time.Minute), shrunk(5*time.Minute), top, top)
	if err := os.WriteFile(a.config(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.cmd != nil {
			a.end(syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("the agent's log:\n%s", a.log.String())
		}
	})
	return a
}

func (a *agent) config() string { return a.dir + "/agent.yaml" }

// start starts the agent and waits until it answers.
func (a *agent) start() {
	a.t.Helper()
	a.cmd = exec.Command(agentProg, "--config", a.config())
	a.cmd.Stderr = &a.log
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	wait(a.t, 100*time.Millisecond, time.Minute, "the agent answers", func() bool {
		_, err := a.Status(a.t.Context())
		return err == nil
	})
}

// end ends the agent with a signal.
func (a *agent) end(s syscall.Signal) error {
	a.cmd.Process.Signal(s)
	err := a.cmd.Wait()
	a.cmd = nil
	return err
}

// restore runs quell-agent restore and returns its output.
func (a *agent) restore() string {
	a.t.Helper()
	out, err := exec.Command(agentProg, "restore", "--config", a.config()).CombinedOutput()
	if err != nil {
		a.t.Fatalf("restore: %v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// cost is a task's cost in the last interval; NaN means no value.
func (a *agent) cost(task string) (v api.SignalView, ok bool) {
	a.t.Helper()
	tasks, err := a.Tasks(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	for _, view := range tasks {
		if view.Name == sample.TaskName(task) && len(view.Costs) > 0 {
			return view.Costs[0], true
		}
	}
	return v, false
}

// incidents are all incidents, in their latest state in the log.
func (a *agent) incidents() map[string]incident.Record {
	a.t.Helper()
	text, err := os.ReadFile(a.dir + "/incidents.jsonl")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.t.Fatal(err)
	}
	newest := map[string]incident.Record{}
	for line := range strings.Lines(string(text)) {
		var inc incident.Record
		if json.Unmarshal([]byte(line), &inc) == nil { // otherwise the line is still being written
			newest[inc.ID] = inc
		}
	}
	return newest
}

// incident waits for an incident that meets cond.
func (a *agent) incident(limit time.Duration, what string, cond func(*incident.Record) bool) (found incident.Record) {
	a.t.Helper()
	wait(a.t, period/4, limit, what, func() bool {
		for _, inc := range a.incidents() {
			if cond(&inc) {
				found = inc
				return true
			}
		}
		return false
	})
	return found
}
