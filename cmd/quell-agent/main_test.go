package main

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// An invalid configuration ends with exit code 2 and all its problems, and nothing is
// changed.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	dir := state(t)
	file := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(file, []byte("enforce: {mode: always}\ntick: 1y\nno_such_key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"", "check", "restore"} {
		args := append(settings(dir, "sampling.period=1s", "detect.outliers=0"), "--config", file)
		if command != "" {
			args = append([]string{command}, args...)
		}
		r := runAgent(t, args...)
		if r.code != daemon.ExitUsage || r.stdout != "" {
			t.Errorf("%q: exit %d, stdout %q", command, r.code, r.stdout)
		}
		for _, want := range []string{
			"5 problems; nothing was changed",
			file + `:1: enforce.mode: "always": want one of off, advise, on`,
			file + `:2: tick: "1y": want a duration`,
			file + `:3: no_such_key: unknown key`,
			`--set: detect.outliers: 0: want 1 to 1000`,
			`sampling.duration: 10s: want at most sampling.period, 1s`,
		} {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%q: %q is missing in:\n%s", command, want, r.stderr)
			}
		}
		if _, err := os.Stat(dir + "/state"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: the state directory: %v", command, err)
		}
	}
}

// A user who may not use the state directory is told what the agent needs; root is not told to become root.
func TestDenied(t *testing.T) {
	t.Parallel()
	err := &fs.PathError{Op: "mkdir", Path: "/var/lib/quell/journal", Err: syscall.EACCES}
	var usage daemon.UsageError
	var how daemon.Remedier
	if got := denied(err, 1000); !errors.As(got, &usage) || !errors.As(got, &how) || !strings.Contains(how.Remedy(), "sudo") || got.Error() != err.Error() {
		t.Errorf("a user: %v", got)
	}
	if got := denied(err, 0); errors.As(got, &how) {
		t.Errorf("root: %v", got)
	}
	if got := denied(io.EOF, 1000); errors.As(got, &how) {
		t.Errorf("another error: %v", got)
	}
}

// A wrong command line ends with exit code 2, too.
func TestBadCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"restart"}, `unknown command "restart"`},
		{[]string{"--confg", "x"}, "unknown flag: --confg"},
		{[]string{"--set"}, "flag needs an argument"},
		{[]string{"--config", "/no/such/file"}, "no such file"},
		{[]string{"--set", "tick"}, "want key=value"},
		{[]string{"restore", "all"}, `unknown command "all"`},
		{[]string{"check", "--all"}, "unknown flag: --all"},
	} {
		if r := runAgent(t, c.args...); r.code != daemon.ExitUsage || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%q: exit %d, stderr %q; want 2 and %q", c.args, r.code, r.stderr, c.want)
		}
	}
}

func TestCheckAndConfig(t *testing.T) {
	t.Parallel()
	if r := runAgent(t, "check"); r.code != 0 || !strings.Contains(r.stdout, "is valid") {
		t.Errorf("check: %+v", r)
	}
	r := runAgent(t, "config")
	if r.code != 0 || r.stdout != config.Reference() {
		t.Errorf("config: %+v", r)
	}
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte(r.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := runAgent(t, "check", "--config", file); r.code != 0 {
		t.Errorf("what config prints: %+v", r)
	}
	if r := runAgent(t, "--version"); r.code != 0 || !strings.Contains(r.stdout, version) {
		t.Errorf("version: %+v", r)
	}
}

// If every signal is requested, each is counted or has a reason and a remedy.
func TestSignalsAreNamed(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir := state(t)
	d := start(t, dir, settings(dir, "signals=cpi,cpt,cps,runq", "sampling.max_tax=0")...)
	s, err := d.Status(t.Context())
	if err != nil || len(s.Signals) != 4 || s.PID != d.cmd.Process.Pid {
		t.Fatalf("status %+v, %v", s, err)
	}
	for _, sig := range s.Signals {
		if sig.OK == (sig.Variant == "") || !sig.OK && sig.Reason == "" {
			t.Errorf("signal %+v", sig)
		}
		missing := strings.Contains(strings.Join(s.Degraded, "\n"), "signal "+string(sig.Signal)+": ")
		if missing == sig.OK {
			t.Errorf("signal %+v, degraded %q", sig, s.Degraded)
		}
	}
}

func TestMetricsAndHealth(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir := state(t)
	d := startRaced(t, dir, settings(dir)...)
	m := regexp.MustCompile(`metrics=(127\.0\.0\.1:\d+)`).FindStringSubmatch(d.log.String())
	if m == nil || strings.HasSuffix(m[1], ":0") {
		t.Fatalf("the log does not say where the metrics are:\n%s", d.log.String())
	}
	get := func(path string) (int, string) {
		t.Helper()
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 4 * time.Minute}
		r, err := c.Get("http://" + m[1] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(text)
	}
	if code, text := get("/metrics"); code != 200 || !strings.Contains(text, "quell_info{") || !strings.Contains(text, "process_cpu_seconds_total") {
		t.Errorf("/metrics: %d %s", code, text)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
	if code, _ := get(api.PathStatus); code != 404 {
		t.Errorf("the socket's resources are on the metrics' address: %d", code)
	}
	info, err := os.Stat(dir + "/agent.sock")
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	info, err = os.Stat(dir + "/state")
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state directory: %v, %v", info, err)
	}
}

// A task that has taken the metrics' port does not keep the agent from its work. The metrics come when the port is free.
func TestATakenPortStopsNothing(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir := state(t)
	l, err := net.Listen("tcp", "127.0.0.2:0") // where no other test takes the port once it is free
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address := l.Addr().String()
	d := startRaced(t, dir, settings(dir, "listen="+address)...)
	for _, taken := range []bool{true, false} {
		if !taken {
			l.Close()
		}
		quelltest.Until(t, "the status says whether the port is taken", quelltest.Paced(func() bool {
			s, err := d.Status(t.Context())
			return err == nil && strings.Contains(strings.Join(s.Degraded, "\n"), "metrics: listen "+address+": ") == taken
		}))
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 4 * time.Minute}
	r, err := c.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	if r.Body.Close(); r.StatusCode != 200 {
		t.Errorf("/healthz: %d", r.StatusCode)
	}
}

// Two agents share neither a state directory nor a socket.
func TestSecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir, other := state(t), state(t)
	d := start(t, dir, settings(dir)...)
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"the same state directory", settings(dir, "socket="+other+"/agent.sock"), []string{"journal is in use", "what to do: stop the agent that uses this state_dir"}},
		{"the same socket", settings(other, "socket="+dir+"/agent.sock"), []string{"another agent answers there"}},
	} {
		r := runAgent(t, c.args...)
		if r.code != daemon.ExitUsage {
			t.Errorf("%s: exit %d", c.name, r.code)
		}
		for _, want := range c.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%s: %q is missing in:\n%s", c.name, want, r.stderr)
			}
		}
	}
	if _, err := d.Status(t.Context()); err != nil {
		t.Errorf("the first one: %v", err)
	}
}

// On SIGTERM, with a window open and a cap in force, the agent undoes the cap and exits
// long before the window's end.
func TestTerminates(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := newLimited(t, "term-"+sig.String()[:4], "-1", "burn")
		dir := state(t)
		d := startRaced(t, dir, append(settings(dir, "sampling.duration=10m", "sampling.period=10m", "detect.outlier_window=1h", "detect.window=1h"), "--config", configFile(t, dir, c.path))...)
		d.cap(c)
		quelltest.Until(t, "the kernel throttles", func() bool { return !strings.Contains(c.read("cpu.stat"), "nr_throttled 0\n") })
		if err := d.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		quelltest.Until(t, "the agent is gone", func() bool {
			select {
			case <-d.ended:
				return true
			default:
				return false
			}
		})
		if code := d.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%v: exit %d\n%s", sig, code, d.log.String())
		}
		if got := c.quota(); got != "-1 100000" {
			t.Errorf("%v: the quota is %s", sig, got)
		}
		if _, err := os.Stat(dir + "/agent.sock"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the socket: %v", sig, err)
		}
		var gone *api.UnreachableError
		if _, err := d.Status(t.Context()); !errors.As(err, &gone) || !strings.Contains(gone.Remedy(), "start quell-agent") {
			t.Errorf("%v: asked afterwards: %v", sig, err)
		}
	}
}
