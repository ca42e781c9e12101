package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
)

// serverProcess is the shipped quell-server of a cluster demo.
type serverProcess struct {
	exe, dir    string
	tree        *workload.Tree
	cpu         int
	api, bus    string // addresses
	log         string
	viewer      *cluster.Client
	operator    *cluster.Client
	cmd         *exec.Cmd
	ended       chan error
	credentials map[string]string // files, by machine
}

const serverName = "quell-server"

// newHub creates what the server and its clients need: addresses, tokens, and
// credentials for the machines.
func newHub(ctx context.Context, exe, dir, log string, tree *workload.Tree, cpu int, machines []string) (*serverProcess, error) {
	h := &serverProcess{exe: exe, dir: dir, tree: tree, cpu: cpu, log: log, credentials: map[string]string{}}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the server's directory: %w", err)
	}
	for _, address := range []*string{&h.api, &h.bus} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		*address = l.Addr().String()
		l.Close()
	}
	var lines []string
	for _, k := range []struct {
		name, scope string
		client      **cluster.Client
	}{{"vera", "viewer", &h.viewer}, {"olga", "operator", &h.operator}} {
		out, err := h.command(ctx, "token", k.name, k.scope)
		words := strings.Split(out, "\n")
		if err != nil || len(words) < 4 {
			return nil, fmt.Errorf("make a token: %q, %w", out, err)
		}
		*k.client = &cluster.Client{URL: "http://" + h.api, Token: strings.TrimSpace(words[1])}
		lines = append(lines, strings.TrimSpace(words[3])+"\n")
	}
	if err := os.WriteFile(filepath.Join(dir, "tokens"), []byte(strings.Join(lines, "")), 0o600); err != nil {
		return nil, fmt.Errorf("write tokens: %w", err)
	}
	for _, m := range machines {
		out, err := h.command(ctx, "credentials", "agent", m, "--set", "state_dir="+h.state())
		h.credentials[m] = filepath.Join(dir, m+".creds")
		if err == nil {
			err = os.WriteFile(h.credentials[m], []byte(out), 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("make credentials: %w", err)
		}
	}
	return h, nil
}

func (h *serverProcess) state() string { return filepath.Join(h.dir, "state") }

func (h *serverProcess) command(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, h.exe, args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, tail(string(failed.Stderr)))
	}
	return string(out), err
}

// start runs the server and returns when it is ready.
func (h *serverProcess) start(ctx context.Context) error {
	log, err := os.OpenFile(h.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make the server's log: %w", err)
	}
	defer log.Close()
	h.ended = make(chan error, 1)
	h.cmd = exec.Command(h.exe)
	for _, setting := range []string{"state_dir=" + h.state(), "listen=" + h.api, "bus.listen=" + h.bus, "tokens_file=" + filepath.Join(h.dir, "tokens"),
		"store.flush=500ms", "specs.every=1h", fmt.Sprint("specs.min_tasks=", len(h.credentials)), fmt.Sprint("specs.min_samples=", samples),
		"limits.per_second=100", "limits.burst=200", "query.threads=1"} {
		h.cmd.Args = append(h.cmd.Args, "--set", setting)
	}
	h.cmd.Stderr = log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := h.tree.Launch(serverName, h.cmd, sample.SetOf(h.cpu)); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	go func() { h.ended <- h.cmd.Wait() }()
	if err := lowerWeight(h.tree, serverName, 2); err != nil {
		return err
	}
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		if _, err = h.viewer.Machines(ctx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case ended := <-h.ended:
			h.ended <- ended
			return fmt.Errorf("the server ended: %w; its log: %s", errors.Join(ended, errors.New("too early")), h.tail())
		case <-deadline.C:
			return fmt.Errorf("the server does not answer: %w; its log: %s", err, h.tail())
		case <-poll.C:
		}
	}
}

// lowerWeight gives a program percent of a task's CPU weight when both want the CPU: on a
// real cluster it would run elsewhere, or need less CPU.
func lowerWeight(tree *workload.Tree, task string, percent int) error {
	dir, v1 := tree.CPUDir(task)
	file, usual := "cpu.weight", 100
	if v1 {
		file, usual = "cpu.shares", 1024
	}
	if err := os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, max(2, usual*percent/100)), 0); err != nil {
		return fmt.Errorf("lower the CPU weight of %s: %w", task, err)
	}
	return nil
}

func (h *serverProcess) tail() string {
	text, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	return tail(string(text))
}

// kill is kill -9.
func (h *serverProcess) kill() error {
	err := h.cmd.Process.Kill()
	<-h.ended
	h.cmd = nil
	return err
}

// stop ends the server as systemd would.
func (h *serverProcess) stop() error {
	if h.cmd == nil {
		return nil
	}
	_ = h.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	var err error
	select {
	case err = <-h.ended:
	case <-time.After(15 * time.Second):
		err = errors.Join(errors.New("the server did not exit within 15 s of SIGTERM"), h.cmd.Process.Kill(), <-h.ended)
	}
	h.cmd = nil
	return err
}

// rows runs an SQL query; each row is read into a new T, whose columns into returns.
func rows[T any](ctx context.Context, c *cluster.Client, sql string, into func(*T) []any) ([]T, error) {
	a, err := c.Query(ctx, cluster.Query{SQL: sql})
	if err != nil {
		return nil, fmt.Errorf("query the server: %w", err)
	}
	all := make([]T, len(a.Rows))
	for i, row := range a.Rows {
		columns := into(&all[i])
		if len(columns) != len(row) {
			return nil, fmt.Errorf("query the server: %d columns, want %d", len(row), len(columns))
		}
		for j, v := range columns {
			if err := json.Unmarshal(row[j], v); err != nil {
				return nil, fmt.Errorf("read the server's answer: %w", err)
			}
		}
	}
	return all, nil
}
