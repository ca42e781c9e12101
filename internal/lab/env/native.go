package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

// native is an environment of the host's own processes.
type native struct {
	*box
	maker *Maker
	mu    sync.Mutex
	procs []*process
	gone  bool
}

func (m *Maker) native(p *study.Part) (lab.Environment, error) {
	b, err := m.box(p, p.Environment.Driver == study.Bare)
	if err != nil {
		return nil, err
	}
	return &native{box: b, maker: m}, nil
}

// process is a command in the cgroup.
type process struct {
	env     *native
	name    string
	cmd     *exec.Cmd
	barrier io.WriteCloser
	waits   bool
	done    chan struct{}
	err     error // valid after done

	mu       sync.Mutex
	stopping bool
}

// Start implements lab.Environment.
func (n *native) Start(_ context.Context, j lab.Job) (lab.Process, error) {
	if len(j.Argv) == 0 {
		return nil, errors.New("start: no program given")
	}
	if _, err := exec.LookPath(j.Argv[0]); err != nil {
		return nil, &lab.LackError{What: fmt.Sprintf("no program %q: %v", j.Argv[0], err), Remedy: "install it, or name it by its path"}
	}
	argv := j.Argv
	if !j.Waits {
		argv = slices.Concat(n.maker.opt.Hold, j.Argv)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = j.Dir, j.Stdout, j.Stderr
	cmd.Env = append(os.Environ(), j.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// What it leaves behind may keep its output open.
	cmd.WaitDelay = 2 * time.Second
	barrier, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", j.Argv[0], err)
	}
	n.box.mu.Lock()
	cpus := n.cpus
	n.box.mu.Unlock()
	if err := n.tree.Launch(n.task, cmd, cpus); err != nil {
		return nil, fmt.Errorf("start %s: %w", j.Argv[0], err)
	}
	p := &process{env: n, name: j.Argv[0], cmd: cmd, barrier: barrier, waits: j.Waits, done: make(chan struct{})}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	n.mu.Lock()
	n.procs = append(n.procs, p)
	n.mu.Unlock()
	return p, nil
}

// Begin implements lab.Process.
func (p *process) Begin() (time.Time, time.Duration, error) {
	from := time.Now()
	if _, err := io.WriteString(p.barrier, "\n"); err != nil {
		return from, 0, fmt.Errorf("begin %s: %w", p.name, err)
	}
	to := time.Now()
	if p.waits {
		return to, to.Sub(from), nil // the open end says to go on
	}
	return to, to.Sub(from), p.barrier.Close()
}

// Done implements lab.Process.
func (p *process) Done() <-chan struct{} { return p.done }

// Err implements lab.Process: nil while it runs, and for one that was stopped.
func (p *process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping || p.err == nil || errors.Is(p.err, exec.ErrWaitDelay) {
		return nil
	}
	return fmt.Errorf("%s: %w", p.name, p.err)
}

// Clock implements lab.Process.
func (p *process) Clock(ns int64) time.Time { return p.env.maker.at(ns) }

// grace is how long a process gets to end by itself.
const grace = 2 * time.Second

// Stop implements lab.Process: it asks first, then kills the process group.
func (p *process) Stop() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	thawed := p.env.thaw()
	_ = p.barrier.Close() // closed already once a program has gone off
	if !p.waits {
		p.signal(unix.SIGTERM)
	}
	if !p.ends(grace) {
		p.signal(unix.SIGKILL)
		<-p.done
	}
	return thawed
}

func (p *process) signal(s unix.Signal) {
	_ = unix.Kill(-p.cmd.Process.Pid, s) // ESRCH: it is ending by itself
}

func (p *process) ends(within time.Duration) bool {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

// Close implements lab.Environment.
func (n *native) Close() error {
	n.mu.Lock()
	procs, gone := n.procs, n.gone
	n.gone = true
	n.mu.Unlock()
	if gone {
		return nil
	}
	errs := []error{n.thaw()}
	for _, p := range procs {
		errs = append(errs, p.Stop())
	}
	return errors.Join(append(errs, n.tree.Remove(n.task))...)
}
