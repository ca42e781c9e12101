package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
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
	process     *child.Process    // nil: it does not run
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
		var err error
		if *address, err = child.FreeAddress(); err != nil {
			return nil, err
		}
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
		err = fmt.Errorf("%w: %s", err, child.End(failed.Stderr))
	}
	return string(out), err
}

// start runs the server and returns when it is ready.
func (h *serverProcess) start(ctx context.Context) (err error) {
	cmd := exec.Command(h.exe)
	for _, setting := range []string{"state_dir=" + h.state(), "listen=" + h.api, "bus.listen=" + h.bus, "tokens_file=" + filepath.Join(h.dir, "tokens"),
		"store.flush=500ms", "specs.every=1h", fmt.Sprint("specs.min_tasks=", len(h.credentials)-1), fmt.Sprint("specs.min_samples=", samples), "specs.min_machines=1",
		"limits.per_second=100", "limits.burst=200", "query.threads=1"} {
		cmd.Args = append(cmd.Args, "--set", setting)
	}
	h.process, err = child.Start(cmd, child.Options{Name: "the server", Log: h.log, Append: true,
		Launch: func(cmd *exec.Cmd) error { return h.tree.Launch(serverName, cmd, sample.SetOf(h.cpu)) }})
	if err != nil {
		return err
	}
	// On a real cluster it would run elsewhere.
	if err := h.tree.Weigh(serverName, 0.02); err != nil {
		return err
	}
	var answer error
	err = h.process.Until(ctx, 30*time.Second, "answer", func() (bool, error) {
		_, answer = h.viewer.Machines(ctx)
		return answer == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w; its log: %s", errors.Join(err, answer), h.process.Tail())
	}
	return nil
}

// kill is kill -9.
func (h *serverProcess) kill() error {
	err := h.process.Kill()
	h.process = nil
	return err
}

// stop ends the server as systemd would.
func (h *serverProcess) stop() error {
	if h.process == nil {
		return nil
	}
	err := h.process.Stop(15 * time.Second)
	h.process = nil
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
