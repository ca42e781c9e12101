package env

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// child is a command that waits at the barrier for a line on its standard input: itself
// (waits), or by WaitAndExec in its place.
type child struct {
	name    string
	cmd     *exec.Cmd
	barrier io.WriteCloser
	waits   bool
	clock   func(ns int64) time.Time // nil in an agent, whose lab knows its clock
	done    chan struct{}
	err     error // valid after done

	mu       sync.Mutex
	stopping bool
}

// newChild prepares a command, calls launch to start it, and waits for its end.
func newChild(argv []string, waits bool, cmd *exec.Cmd, launch func(*exec.Cmd) error) (*child, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Processes that it leaves behind may keep its output open.
	cmd.WaitDelay = 2 * time.Second
	barrier, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	if err := launch(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	c := &child{name: argv[0], cmd: cmd, barrier: barrier, waits: waits, done: make(chan struct{})}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// Begin implements lab.Process. The barrier of a command that waits by itself stays open:
// closing it tells the command to end.
func (c *child) Begin() (time.Time, time.Duration, error) {
	from := time.Now()
	_, err := io.WriteString(c.barrier, "\n")
	if err == nil && !c.waits {
		// A command that has ended has closed it already.
		if err = c.barrier.Close(); errors.Is(err, os.ErrClosed) {
			err = nil
		}
	}
	to := time.Now()
	if err != nil {
		err = fmt.Errorf("begin %s: %w", c.name, err)
	}
	return to, to.Sub(from), err
}

// Clock implements lab.Process.
func (c *child) Clock(ns int64) time.Time { return c.clock(ns) }

// Stop implements lab.Process.
func (c *child) Stop() error {
	c.end()
	return nil
}

// Done implements lab.Process.
func (c *child) Done() <-chan struct{} { return c.done }

// Err implements lab.Process: nil while it runs, and for one that was stopped.
func (c *child) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.err == nil || errors.Is(c.err, exec.ErrWaitDelay) {
		return nil
	}
	return fmt.Errorf("%s: %w", c.name, c.err)
}

// grace is the time limit for a process to end by itself.
const grace = 2 * time.Second

// end asks the command to end, kills its process group after grace, and waits.
func (c *child) end() {
	select {
	case <-c.done:
		return
	default:
	}
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	_ = c.barrier.Close() // closed already after begin, unless the command waits
	if !c.waits {
		c.signal(unix.SIGTERM)
	}
	if !within(c.done, grace) {
		c.signal(unix.SIGKILL)
		<-c.done
	}
}

func (c *child) signal(s unix.Signal) {
	_ = unix.Kill(-c.cmd.Process.Pid, s) // ESRCH: it is ending by itself
}

// within reports whether a channel is closed in time.
func within(done <-chan struct{}, limit time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
