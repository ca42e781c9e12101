package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Guard is a process that outlives the lab briefly. It holds the other end of a pipe.
// When the pipe is closed, by an orderly end or by a kill -9 of the lab, it continues
// everything that was registered. It is safe for use by several goroutines: the loads of a run's
// parts are held at the same time.
type Guard struct {
	cmd *exec.Cmd

	mu   sync.Mutex // of a registration and its confirmation
	pipe io.WriteCloser
	said *bufio.Reader
}

// StartGuard starts the program that calls GuardMain, e.g. this program with a hidden
// subcommand.
func StartGuard(argv ...string) (*Guard, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	// Neither the terminal's signals nor those to the lab's process group reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return &Guard{cmd: cmd, pipe: in, said: bufio.NewReader(out)}, nil
}

// watch registers something to continue, and returns when the guard has confirmed it.
func (g *Guard) watch(kind, name, value string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := fmt.Fprintf(g.pipe, "%s %s %s\n", kind, strconv.Quote(name), strconv.Quote(value))
	if err == nil {
		_, err = g.said.ReadString('\n')
	}
	if err != nil {
		return fmt.Errorf("register with the guard: %w", err)
	}
	return nil
}

// Close continues everything and ends the guard.
func (g *Guard) Close() error {
	return errors.Join(g.pipe.Close(), g.cmd.Wait())
}

// GuardMain is the guard: it reads registrations until its input ends, then continues
// everything, the last first. It ignores what no longer exists.
func GuardMain(in io.Reader, out io.Writer) error {
	var undo []func() error
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var kind, name, value string
		if _, err := fmt.Sscanf(lines.Text(), "%s %q %q", &kind, &name, &value); err != nil {
			continue // incomplete: its object is not stopped yet
		}
		switch kind {
		case "write":
			undo = append(undo, func() error { return host.WriteFile(name, value) })
		case "pid":
			undo = append(undo, func() error {
				pid, err := strconv.Atoi(name)
				if err != nil || startTime(name) != value {
					return nil // it has ended; the pid may be another process's
				}
				return unix.Kill(pid, unix.SIGCONT)
			})
		}
		if _, err := fmt.Fprintln(out, "ok"); err != nil {
			break // the lab is gone
		}
	}
	var errs []error
	for i := len(undo) - 1; i >= 0; i-- {
		err := undo[i]()
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
