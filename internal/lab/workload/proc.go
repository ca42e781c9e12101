package workload

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Proc is one started workload.
type Proc struct {
	Task     string
	PID      int
	Progress string // path of its progress file, created when it begins

	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
	err   error // valid after done
}

// StartOptions are the options of one process; the zero value works.
type StartOptions struct {
	// CPUs it may run on; empty for all CPUs of this process.
	CPUs sample.Set
	// Stdout and Stderr take its output; nil for none.
	Stdout, Stderr io.Writer
}

// Start starts a workload in the task's cgroups, created if needed. The workload does no
// work until Begin. It dies with the tree, and with this process if that is killed.
// Several processes may share a task.
func (t *Tree) Start(task string, s Spec, opt StartOptions) (*Proc, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("start workload: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.claim(task); err != nil {
		return nil, fmt.Errorf("start workload: %w", err)
	}
	p := &Proc{Task: task, done: make(chan struct{}),
		Progress: filepath.Join(t.scratch, fmt.Sprintf("%s.%d", strings.ReplaceAll(task, "/", "."), len(t.procs)))}
	p.cmd = exec.Command(t.exe, append([]string{"workload"}, s.Args()...)...)
	// One P: then no second runtime thread is busy.
	p.cmd.Env = append(os.Environ(), "GOMAXPROCS=1", ProgressEnv+"="+p.Progress)
	p.cmd.Stdout, p.cmd.Stderr = opt.Stdout, opt.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start workload: %w", err)
	}
	started := make(chan error)
	t.threads <- func() { started <- startOn(p.cmd, opt.CPUs) }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start workload: %w", err)
	}
	p.PID = p.cmd.Process.Pid
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.procs = append(t.procs, p)
	if err := t.enter(task, p.PID, opt.CPUs); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// startOn starts cmd from the calling thread, which is locked: every thread of the new
// process inherits its affinity.
func startOn(cmd *exec.Cmd, cpus sample.Set) error {
	if cpus.Len() == 0 {
		return cmd.Start()
	}
	all, err := host.Affinity(0)
	if err != nil {
		return fmt.Errorf("get affinity: %w", err)
	}
	for _, c := range cpus.Numbers() {
		if !all.Has(c) {
			return &MissingError{fmt.Sprintf("CPU %d is not available to this process", c),
				"choose others, or lift its affinity and cpuset", nil}
		}
	}
	if err := host.SetAffinity(0, cpus); err != nil {
		return fmt.Errorf("set affinity %s: %w", cpus, err)
	}
	err = cmd.Start()
	if back := host.SetAffinity(0, all); back != nil {
		err = errors.Join(err, fmt.Errorf("restore affinity: %w", back))
	}
	return err
}

// Begin releases the workload.
func (p *Proc) Begin() error {
	if _, err := io.WriteString(p.stdin, "\n"); err != nil {
		return fmt.Errorf("begin workload %s: %w", p.Task, err)
	}
	return nil
}

// Stop ends the workload, first by closing its input and after a while by SIGKILL. It
// returns how the workload ended: nil if without an error.
func (p *Proc) Stop() error {
	_ = p.stdin.Close() // already closed if it has ended
	select {
	case <-p.done:
	case <-time.After(teardownTimeout):
		p.kill()
		<-p.done
	}
	if p.err != nil {
		return fmt.Errorf("workload %s: %w", p.Task, p.err)
	}
	return nil
}

// Done is closed when the process has ended and been reaped.
func (p *Proc) Done() <-chan struct{} { return p.done }

func (p *Proc) kill() {
	_ = p.cmd.Process.Kill() // os.ErrProcessDone: it has already ended
}
