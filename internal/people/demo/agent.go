package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
)

// agentProcess is the shipped agent, running on the scene.
type agentProcess struct {
	dir    string // state, socket, configuration, log
	client *api.Client
	cmd    *exec.Cmd
	ended  chan error
}

// startAgent runs quell-agent with a configuration for the scene only: its rules match
// the tree and nothing else on the machine.
func (d *demo) startAgent(ctx context.Context, tree *workload.Tree, sig sample.SignalName) (*agentProcess, error) {
	dir := filepath.Join(tree.Scratch(), "agent")
	return launchAgent(ctx, tree, launch{exe: d.Agent, task: agentName, dir: dir, log: d.logPath(dir), cpu: d.otherCPU,
		conf: d.configuration(dir, tree.Top(), sig)})
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
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	g := &agentProcess{dir: l.dir, client: api.NewClient(filepath.Join(l.dir, "agent.sock")), ended: make(chan error, 1)}
	conf := filepath.Join(l.dir, "agent.yaml")
	if err := os.WriteFile(conf, []byte(l.conf), 0o600); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	logFile, err := os.Create(l.log)
	if err != nil {
		return nil, fmt.Errorf("make the agent's log: %w", err)
	}
	defer logFile.Close()
	g.cmd = exec.Command(l.exe, "--config", conf)
	g.cmd.Stderr = logFile
	// If the demo is killed the agent still stops regularly and undoes its caps.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	// In the tree, because the scene has priority over the rest of the machine.
	if err := tree.Launch(l.task, g.cmd, sample.SetOf(l.cpu)); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	go func() { g.ended <- g.cmd.Wait() }()
	err = g.until(ctx, 15*time.Second, "answer on its socket", func() (bool, error) {
		_, err := g.client.Status(ctx)
		var unreachable *api.UnreachableError
		if errors.As(err, &unreachable) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		text, _ := os.ReadFile(l.log)
		return nil, errors.Join(fmt.Errorf("%w; its log: %s", err, tail(string(text))), g.stop())
	}
	return g, nil
}

func (d *demo) logPath(dir string) string {
	if d.AgentLog != "" {
		return d.AgentLog
	}
	return filepath.Join(dir, "agent.log")
}

// tail is the end of a log, on one line.
func tail(text string) string {
	const most = 600
	if len(text) > most {
		text = "…" + text[len(text)-most:]
	}
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", " | ")
}

func (d *demo) configuration(dir, top string, sig sample.SignalName) string {
	var b strings.Builder
	b.WriteString(d.beat.settings(dir, sig, d.Mode, samples))
	fmt.Fprintf(&b, "rules:\n  - {match: %q, ignore: true}\n", top+"/"+agentName)
	fmt.Fprintf(&b, "  - {match: %q, job: %q, class: latency-sensitive}\n", top+"/"+victimName, victimName)
	fmt.Fprintf(&b, "  - {match: %q, job: \"$1\", class: batch}\n", top+"/*")
	return b.String()
}

// settings are an agent's configuration in addition to its rules: its paths and the
// shortened times.
func (t timescale) settings(dir string, sig sample.SignalName, m plan.Mode, samples int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "state_dir: %q\nsocket: %q\nlisten: \"\"\nsignals: [%s]\n", dir, filepath.Join(dir, "agent.sock"), sig)
	fmt.Fprintf(&b, "tick: %s\nsampling: {duration: %s, period: %s, max_tax: 0}\n", t.tick(), t.interval(), t.interval())
	fmt.Fprintf(&b, "spec: {min_samples: %d}\n", samples)
	fmt.Fprintf(&b, "detect: {outlier_window: %s, window: %s, pace: 0s}\n", t.outlierWindow(), t.window())
	fmt.Fprintf(&b, "enforce: {mode: %q, for: %s, trial: %s, calm: %s}\n", m, t.capFor(), t.trial(), t.outlierWindow())
	return b.String()
}

// until waits for a condition of the agent, at most for the limit.
func (g *agentProcess) until(ctx context.Context, limit time.Duration, what string, cond func() (bool, error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		if ok, err := cond(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-g.ended:
			g.ended <- err
			return fmt.Errorf("wait for the agent to %s: it ended: %w", what, errors.Join(err, errors.New("too early")))
		case <-deadline.C:
			return fmt.Errorf("wait for the agent to %s: %w after %s", what, errSlow, limit)
		case <-poll.C:
		}
	}
}

// errSlow is until's error when the limit has passed.
var errSlow = errors.New("it did not")

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

// stop ends the agent as systemd would. An agent that does not exit is killed, after it
// has written to its log where it hangs; the error says so.
func (g *agentProcess) stop() error {
	var err error
	if sig := g.cmd.Process.Signal(syscall.SIGTERM); sig == nil || errors.Is(sig, os.ErrProcessDone) {
		select {
		case err = <-g.ended:
		case <-time.After(10 * time.Second):
			err = errors.New("the agent did not exit within 10 s of SIGTERM; the end of its log shows where it hangs")
			_ = g.cmd.Process.Signal(syscall.SIGQUIT)
			select {
			case ended := <-g.ended:
				err = errors.Join(err, ended)
			case <-time.After(2 * time.Second):
				err = errors.Join(err, g.cmd.Process.Kill(), <-g.ended)
			}
		}
	}
	return err
}
