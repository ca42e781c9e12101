package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/machine/host"
)

// worker kills at points, one after the other, in its own cgroups and
// directories. It is also a process of its own: it alone waits for what a
// traced program leaves behind, and it has its own mounts.
type worker struct {
	h         *host.Host
	agent     string // the program
	task      *cgroup
	web, kept *cgroup // latency-sensitive, never-cap
	dir       string
	config    string
	small     string // a tmpfs of 256 KiB
	state     string // the state directory of this point
	log       *os.File
	bounds    bounds
	r         *result

	mu    sync.Mutex // over requesting a cap and setting another limit
	taken bool       // setForeignLimit has set a limit
}

// untouched is the limit of the tasks that may not be capped.
var untouched = limit{"-1", "100000"}

func work(ctx context.Context, o options, numbers []int, w io.Writer) (err error) {
	runtime.LockOSThread() // ptrace and death signals belong to a thread
	k := &worker{agent: o.agent, bounds: o.bounds}
	if k.h, err = host.Open("/"); err != nil {
		return err
	}
	if k.dir, err = os.MkdirTemp("", "quell-fault-"); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(k.dir)
	if k.log, err = os.OpenFile(k.dir+"/log", os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer k.log.Close()
	k.small = k.dir + "/small"
	if err := os.Mkdir(k.small, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	for which, c := range map[string]**cgroup{"task": &k.task, "web": &k.web, "kept": &k.kept} {
		if *c, err = newCgroup(k.h, "/"+o.name+"-"+which); err != nil {
			return err
		}
		defer (*c).close()
	}
	k.config = k.dir + "/agent.yaml"
	text := fmt.Sprintf("rules:\n- {match: %q, job: task, class: batch}\n- {match: %q, job: web, class: latency-sensitive}\n- {match: %q, job: kept, class: batch, never_cap: true}\n",
		k.task.path, k.web.path, k.kept.path)
	if err := os.WriteFile(k.config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	out := json.NewEncoder(w)
	if o.faults {
		return k.injectFaults(ctx, o.seed, numbers, out)
	}
	for _, n := range numbers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := out.Encode(k.point(newPoint(o.seed, n))); err != nil {
			return err
		}
	}
	return nil
}

// program returns a command that runs the agent or, for lifeEnforce and
// backEnforce, this program.
func (k *worker) program(what string) *exec.Cmd {
	var cmd *exec.Cmd
	settings := []string{"--config", k.config, "--set", "state_dir=" + k.state, "--set", "journals=" + k.dir + "/journals", "--set", "exclusive=false", "--set", "socket=" + k.socket(), "--set", "listen=", "--set", "signals=cpt",
		"--set", "tick=50ms", "--set", "enforce.quota_period=50ms", "--set", "enforce.best_effort_rate=0.02"}
	switch what {
	case lifeEnforce:
		cmd = exec.Command("/proc/self/exe", "-child", "life", k.journal(), k.task.dir)
	case backEnforce:
		cmd = exec.Command("/proc/self/exe", "-child", "restore", k.journal())
	case lifeAgent, backStart:
		cmd = exec.Command(k.agent, settings...)
	case backRestore:
		cmd = exec.Command(k.agent, append([]string{"restore"}, settings...)...)
	case backOverdue:
		cmd = exec.Command(k.agent, append([]string{"restore", "--overdue"}, settings...)...)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), childEnv + "=1", "GORACE=atexit_sleep_ms=0"}
	cmd.Stdout, cmd.Stderr = k.log, k.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (k *worker) journal() string { return k.state + "/journal" }
func (k *worker) socket() string  { return k.dir + "/s" }

// kill starts a program and kills it in the target phase, or after a timeout if
// it does not get there. hit is the phase it was killed in; ok is false if it
// ended by itself. during runs in parallel with it.
func (k *worker) kill(p *point, what string, target phase, during func(ctx context.Context)) (hit phase, ok bool, err error) {
	cmd := k.program(what)
	ctx, stop := context.WithCancel(context.Background())
	side := make(chan struct{})
	started := func(pid int) {
		k.watch(ctx, pid, target == anywhere, p, what)
		go func() { defer close(side); during(ctx) }()
	}
	defer func() { stop(); <-side }()
	if target == anywhere {
		if err := cmd.Start(); err != nil {
			close(side)
			return 0, false, fmt.Errorf("start %s: %w", what, err)
		}
		started(cmd.Process.Pid)
		_ = cmd.Wait() // how it ended is looked at below
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		return anywhere, status.Signaled() && status.Signal() == syscall.SIGKILL, nil
	}
	skip := 0
	if what == lifeEnforce && target >= notIntended {
		skip = p.rng.IntN(4) // caps that it may make before
	}
	var c phaseTracker
	w := watched{k.journal(), k.task.dir}
	end, err := trace(cmd, started, func(call call) action {
		e := w.effect(call)
		if e == none {
			return action{}
		}
		before := c.next(e)
		if target == inForce && before == acknowledgeNotSynced {
			if skip--; skip < 0 {
				k.killAfter(ctx, cmd.Process.Pid, time.Duration(p.rng.Int64N(int64(map[string]time.Duration{lifeEnforce: lease, lifeAgent: agentLease}[what]))))
				hit = inForce
			}
			return action{}
		}
		if before == target {
			skip--
		}
		if before == target && skip < 0 && hit == anywhere {
			hit = target
			return action{kill: true}
		}
		return action{}
	})
	if cmd.Process == nil {
		close(side)
	}
	return hit, end.killed, err
}

// agentLease is the shortest lease that the agent grants.
const agentLease = time.Second

// watch kills a program that is not killed otherwise: after a random time if
// random is set, else after 20 s.
func (k *worker) watch(ctx context.Context, pid int, random bool, p *point, what string) {
	after := 20 * time.Second
	if random {
		after = time.Duration(p.rng.Int64N(int64(2500 * time.Millisecond)))
		if what == lifeEnforce || what == backEnforce {
			after /= 12
		}
	}
	k.killAfter(ctx, pid, after)
}

// killAfter kills a process after a delay, unless ctx ends first: then the process has ended.
func (k *worker) killAfter(ctx context.Context, pid int, after time.Duration) {
	go func() {
		select {
		case <-time.After(after):
			_ = unix.Kill(pid, unix.SIGKILL)
		case <-ctx.Done():
		}
	}()
}

// operate requests caps from an agent as long as it lives: of the task, which
// it grants, and of those that may not be capped.
func (k *worker) operate(ctx context.Context) {
	c := api.NewClient(k.socket())
	for ctx.Err() == nil {
		k.mu.Lock()
		if !k.taken {
			_, _ = c.Command(ctx, command.CapTask(k.task.path, 0.1, agentLease, "fault injection"))
		}
		k.mu.Unlock()
		for _, t := range []*cgroup{k.web, k.kept} {
			if _, err := c.Command(ctx, command.CapTask(t.path, 0.1, time.Hour, "fault injection")); err == nil {
				k.r.Wrong = append(k.r.Wrong, t.path+" must not be capped, and was capped on request")
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// tail returns the end of the programs' log.
func (k *worker) tail() string {
	text, _ := os.ReadFile(k.log.Name())
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

func (k *worker) fresh(p *point) error {
	k.taken = false
	if err := k.log.Truncate(0); err != nil {
		return err
	}
	k.state = filepath.Join(k.dir, "state")
	if p.onSmall() {
		if err := unix.Mount("tmpfs", k.small, "tmpfs", 0, "size=256k,mode=700"); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		k.state = filepath.Join(k.small, "state")
	}
	for _, c := range []*cgroup{k.web, k.kept} {
		if err := c.set(untouched); err != nil {
			return err
		}
	}
	return errors.Join(k.task.again(p.before), os.MkdirAll(k.state, 0o700))
}

func (k *worker) clear(p *point) error {
	if p.onSmall() {
		return unix.Unmount(k.small, unix.MNT_DETACH)
	}
	return os.RemoveAll(k.state)
}

func (p *point) onSmall() bool {
	return p.scenario == full || p.scenario == fullAlive || p.scenario == readOnly
}
