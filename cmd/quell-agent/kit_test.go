package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// testMode makes this test binary the agent itself, with the given arguments, or a
// process that uses a CPU.
const testMode = "QUELL_AGENT_TEST_MODE"

func TestMain(m *testing.M) {
	switch os.Getenv(testMode) {
	case "":
		quelltest.Main(m)
	case "agent":
		main()
	case "task":
		runTask()
	case "burn":
		for n := 0; ; n++ {
		}
	case "stay":
		stay()
	case "net":
		netChild()
	case "work":
		progress()
	}
}

// ran is the result of a run of the agent.
type ran struct {
	code           int
	stdout, stderr string
}

// program is a program that is built once, when the first test needs it.
type program struct {
	once sync.Once
	path string
}

var agentProgram program

// build returns the path of the shipped agent.
func (p *program) build(t *testing.T) string {
	t.Helper()
	p.once.Do(func() {
		if p.path = *shipped; p.path == "" {
			p.path = quelltest.Program(t, "quell-agent")
		}
	})
	return p.path
}

// agentCommand prepares a run of the agent as it is shipped. It is not configured by the
// environment of this process.
func agentCommand(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, agentProgram.build(t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return cmd
}

// racedCommand is agentCommand with the race detector, if the tests have it: the agent is this
// test binary. It uses several times the CPU time.
func racedCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// With the race detector it would sleep a second before it exits.
	cmd.Env = []string{testMode + "=agent", "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"}
	return cmd
}

// runAgent runs the agent to its end.
func runAgent(t *testing.T, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // a guard against hanging
	defer cancel()
	cmd := agentCommand(ctx, t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// running is a running agent.
type running struct {
	*api.Client
	t     *testing.T
	cmd   *exec.Cmd
	log   logFile // a file, since exec's pipe may lag behind the agent's answers
	ended chan struct{}
}

// logFile is a file with a process's messages.
type logFile struct{ path string }

func (l logFile) String() string {
	text, err := os.ReadFile(l.path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// state makes a directory for an agent's state and socket. Its name is short, because a
// socket's path must be.
func state(t *testing.T) string {
	t.Helper()
	agentProgram.build(t) // before any task uses CPU time
	dir, err := os.MkdirTemp("", "quell-agent-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// settings are the settings of every agent in these tests: this machine's own agent and
// its files are not touched.
func settings(dir string, more ...string) []string {
	var args []string
	for _, s := range append([]string{"state_dir=" + dir + "/state", "journals=" + dir + "/journals", "exclusive=false", "socket=" + dir + "/agent.sock", "listen=127.0.0.1:0",
		"signals=cpt", "tick=50ms"}, more...) {
		args = append(args, "--set", s)
	}
	return args
}

// start runs the agent until it answers; it is killed when the test ends.
func start(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	return startWith(t, dir, nil, args...)
}

// startWith is start with additional environment variables.
func startWith(t *testing.T, dir string, env []string, args ...string) *running {
	t.Helper()
	cmd := agentCommand(context.Background(), t, args...)
	cmd.Env = append(cmd.Env, env...)
	return startCommand(t, dir, cmd)
}

// startRaced is start with the race detector; a race fails the test.
func startRaced(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	return startCommand(t, dir, racedCommand(context.Background(), args...))
}

// startCommand is start with a command that is, or becomes, the agent.
func startCommand(t *testing.T, dir string, cmd *exec.Cmd) *running {
	t.Helper()
	d := &running{Client: api.NewClient(dir + "/agent.sock"), t: t, cmd: cmd, ended: make(chan struct{})}
	d.startLogged()
	go func() {
		d.cmd.Wait()
		close(d.ended)
	}()
	t.Cleanup(func() {
		d.cmd.Process.Kill()
		<-d.ended
		if strings.Contains(d.log.String(), "DATA RACE") {
			t.Error("the agent has a data race")
		}
		if t.Failed() {
			t.Logf("the agent's log:\n%s", d.log.String())
		}
	})
	quelltest.Until(t, "the agent answers", func() bool {
		select {
		case <-d.ended:
			t.Fatalf("the agent ended:\n%s", d.log.String())
		default:
		}
		_, err := d.Status(t.Context())
		return err == nil
	})
	return d
}

// startLogged starts the process with its messages in a file.
func (d *running) startLogged() {
	d.t.Helper()
	file, err := os.CreateTemp(d.t.TempDir(), "log-")
	if err != nil {
		d.t.Fatal(err)
	}
	defer file.Close() // the process has its own descriptor
	d.log, d.cmd.Stderr = logFile{file.Name()}, file
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

// kill ends the agent as kill -9 does.
func (d *running) kill() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Fatal(err)
	}
	<-d.ended
}

// configFile writes a configuration that makes the cgroups below the v1 path tasks.
func configFile(t *testing.T, dir, cgroup string) string {
	t.Helper()
	name := filepath.Join(dir, "agent.yaml")
	text := fmt.Sprintf("rules: [{match: %q, job: test, class: batch}]\n", cgroup)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const cpuMount = "/sys/fs/cgroup/cpu"

// limited is a v1 cgroup with a process and a quota.
type limited struct {
	t    *testing.T
	path string
}

// newLimited makes a cgroup with the quota ("-1": none) per 100 ms, and a process that
// runs as mode says.
func newLimited(t *testing.T, name, quota, mode string) *limited {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	c := &limited{t, fmt.Sprintf("/quell-test-cmd-%d-%s", os.Getpid(), name)}
	dir := quelltest.MakeCgroup(t, cpuMount+c.path)
	c.write("cpu.cfs_period_us", "100000")
	c.write("cpu.cfs_quota_us", quota)
	cmd := exec.Command("cat")
	if mode == "burn" {
		cmd = exec.Command(os.Args[0])
		cmd.Env = []string{testMode + "=burn", "GOMAXPROCS=1"}
	}
	quelltest.StartChild(t, cmd, dir)
	return c
}

func (c *limited) write(file, value string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(cpuMount+c.path, file), []byte(value), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *limited) read(file string) string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(cpuMount+c.path, file))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// quota is the current limit: quota and period, µs.
func (c *limited) quota() string {
	c.t.Helper()
	return c.read("cpu.cfs_quota_us") + " " + c.read("cpu.cfs_period_us")
}

// cap asks the agent for a cap to 0.1 CPU-s/s, for an hour.
func (d *running) cap(c *limited) {
	d.t.Helper()
	d.capFor(c, time.Hour)
	if got := c.read("cpu.cfs_quota_us"); got != "10000" {
		d.t.Fatalf("capped, the quota is %s", got)
	}
}

// capFor asks for a cap as soon as the agent follows the task. A short lease may have ended
// when it returns.
func (d *running) capFor(c *limited, lease time.Duration) {
	d.t.Helper()
	var err error
	quelltest.Until(d.t, c.path+" can be capped", func() bool {
		_, err = d.Command(d.t.Context(), command.CapTask(c.path, 0.1, lease, "test"))
		var refused *api.RefusedError
		return !errors.As(err, &refused) || refused.Status != 404
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

// stop stops the agent as a debugger does, and waits until all its threads have stopped.
func (d *running) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		d.t.Fatal(err)
	}
	var err error
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Waitid(unix.P_PID, d.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// wake continues an agent that was stopped.
func (d *running) wake() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(unix.SIGCONT); err != nil {
		d.t.Fatal(err)
	}
}

// stopCapped stops the agent while a cap of a task whose quota is 40000 is in force, and waits
// until the lease has ended.
func (d *running) stopCapped(c *limited) {
	d.t.Helper()
	const lease = time.Second
	quelltest.Until(d.t, "the agent is stopped within a lease", func() bool {
		d.capFor(c, lease)
		d.stop()
		if c.quota() == "10000 100000" {
			return true
		}
		d.wake() // it was faster
		quelltest.Until(d.t, "the cap has ended", func() bool { return c.quota() == "40000 100000" && len(d.caps()) == 0 })
		return false
	})
	until := time.Now().Add(lease)
	quelltest.Until(d.t, "the lease expires", func() bool { return time.Now().After(until) })
}

// caps are the agent's caps in force.
func (d *running) caps() []api.CapView {
	d.t.Helper()
	s, err := d.Status(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return s.Caps
}

// expire ends the lease of a cap in the journal of a dead agent, as if its time had passed.
func expire(t *testing.T, dir string, c *limited) {
	t.Helper()
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	e, err := enforce.Open(dir+"/state/journal", h)
	if err != nil {
		t.Fatal(err)
	}
	past := sample.At(time.Now()).Add(-time.Minute)
	for _, change := range e.Active() {
		if change.Task != sample.TaskName(c.path) {
			continue
		}
		_, err := e.Undo(past, change.ID, "it is set again with another lease")
		change.From, change.Until = past, past.Add(time.Second)
		if err := errors.Join(err, e.Apply(past, change)); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if got := c.quota(); got != "10000 100000" {
		t.Fatalf("with its lease over and not undone, the quota is %s", got)
	}
}
