package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
)

// agentProcess is the shipped agent, running on the scene.
type agentProcess struct {
	*child.Process
	dir    string // state, socket, configuration, log
	client *api.Client
}

// startAgent runs quell-agent with a configuration for the scene only: its rules match
// the tree and nothing else on the machine.
func (d *demo) startAgent(ctx context.Context, tree *workload.Tree, sig sample.SignalName) (*agentProcess, error) {
	dir := filepath.Join(tree.Scratch(), "agent")
	return launchAgent(ctx, tree, launch{exe: d.Agent, task: agentName, dir: dir, log: cmp.Or(d.AgentLog, filepath.Join(dir, "agent.log")), cpu: d.otherCPU,
		conf: d.configuration(tree.Top(), sig)})
}

// launch says how to start an agent.
type launch struct {
	exe, task string
	dir       string // state, socket, configuration
	conf, log string // text of the configuration, file of the log
	cpu       int
}

// launchAgent starts a shipped agent and returns when it answers.
func launchAgent(ctx context.Context, tree *workload.Tree, l launch) (*agentProcess, error) {
	cmd, err := child.Agent(l.exe, l.dir, l.conf)
	if err != nil {
		return nil, err
	}
	g := &agentProcess{dir: l.dir, client: api.NewClient(child.Socket(l.dir))}
	// In the tree, because the scene has priority over the rest of the machine.
	g.Process, err = child.Start(cmd, child.Options{Name: "the agent", Log: l.log,
		Launch: func(cmd *exec.Cmd) error { return tree.Launch(l.task, cmd, sample.SetOf(l.cpu)) }})
	if err != nil {
		return nil, err
	}
	err = g.Until(ctx, 15*time.Second, "answer on its socket", func() (bool, error) {
		_, err := g.client.Status(ctx)
		var unreachable *api.UnreachableError
		if errors.As(err, &unreachable) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w; its log: %s", err, g.Tail()), g.stop())
	}
	return g, nil
}

func (d *demo) configuration(top string, sig sample.SignalName) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: %q\n", d.Listen)
	b.WriteString(d.beat.settings(sig, d.Mode, samples))
	fmt.Fprintf(&b, "rules:\n  - {match: %q, ignore: true}\n", top+"/"+agentName)
	fmt.Fprintf(&b, "  - {match: %q, job: %q, class: latency-sensitive}\n", top+"/"+victimName, victimName)
	fmt.Fprintf(&b, "  - {match: %q, job: \"$1\", class: batch}\n", top+"/*")
	return b.String()
}

// settings are an agent's configuration in addition to its rules: the shortened times.
func (t timescale) settings(sig sample.SignalName, m plan.Mode, samples int) string {
	var b strings.Builder
	signals := string(sig)
	if s, _ := sample.LookupSignal(sig); s.SelfReported { // no cap without a witness
		signals += ", " + string(sample.Probe)
	}
	fmt.Fprintf(&b, "signals: [%s]\n", signals)
	fmt.Fprintf(&b, "tick: %s\nsampling: {duration: %s, period: %s, max_tax: 0}\n", t.tick(), t.interval(), t.interval())
	fmt.Fprintf(&b, "spec: {min_samples: %d}\n", samples)
	fmt.Fprintf(&b, "detect: {outlier_window: %s, window: %s, pace: 0s}\n", t.outlierWindow(), t.window())
	fmt.Fprintf(&b, "enforce: {mode: %q, for: %s, trial: %s, calm: %s}\n", m, t.capFor(), t.trial(), t.outlierWindow())
	return b.String()
}

// victim returns the agent's view of the victim, nil if the agent does not follow it yet.
func (g *agentProcess) victim(ctx context.Context, name sample.TaskName) (*api.TaskView, error) {
	tasks, err := g.client.Tasks(ctx)
	for i := range tasks {
		if tasks[i].Name == name {
			return &tasks[i], err
		}
	}
	return nil, err
}

// incidents reads the agent's incidents, also after it has ended.
func (g *agentProcess) incidents() ([]incident.Record, error) {
	return logbook.Load(g.dir)
}

// stop ends the agent as systemd would.
func (g *agentProcess) stop() error { return g.Stop(10 * time.Second) }
