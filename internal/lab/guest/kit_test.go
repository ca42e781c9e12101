package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os/exec"
	"strconv"
	"strings"
)

// ErrNoExit reports that a guest ended, or was ended, without an exit line: its kernel
// panicked, or its time was over. The error that wraps it has the last lines of the
// console.
var ErrNoExit = errors.New("guest ended without an exit line")

// exitLine is the line that init prints at the end.
const exitLine = "GUEST-EXIT "

// Guest is a running machine. Its methods must be called by one goroutine.
type Guest struct {
	ctx     context.Context
	cmd     *exec.Cmd
	console *bufio.Reader
	last    []string // the end of the console
	exit    int      // status from exitLine; -1 before it
}

// tail is the number of console lines in an error.
const tail = 25

// Start boots a machine. The machine ends when ctx is done or when this process dies.
// Every Start needs a Wait, which reaps QEMU after the power-off. Without QEMU the error
// is a *MissingError.
func Start(ctx context.Context, m Machine) (*Guest, error) {
	cmd, err := m.Command(ctx)
	if err != nil {
		return nil, err
	}
	g := &Guest{ctx: ctx, cmd: cmd, exit: -1}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	g.cmd.Stderr = g.cmd.Stdout // QEMU's own messages are part of the console
	g.console = bufio.NewReader(out)
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	return g, nil
}

// Lines yields the console, a line at a time without its end, until the guest ends. If
// the caller does not read, the guest blocks after a few more lines.
func (g *Guest) Lines() iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			line, err := g.console.ReadString('\n')
			if line != "" {
				line = strings.TrimRight(line, "\r\n")
				g.note(line)
				if !yield(line) {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
}

// note stores a line of the console and the exit status in it.
func (g *Guest) note(line string) {
	if len(g.last) == tail {
		g.last = append(g.last[:0], g.last[1:]...)
	}
	g.last = append(g.last, line)
	// The kernel may write into a line that a program has begun, so this looks for the
	// word and not for the whole line.
	if _, rest, ok := strings.Cut(line, exitLine); ok {
		if n, err := strconv.Atoi(strings.TrimSpace(rest)); err == nil {
			g.exit = n
		}
	}
}

// Wait reads the rest of the console and returns the exit status of the guest's programs:
// 0, or the first other status. The error is ErrNoExit for a guest that did not get so
// far, together with ctx's error if that is the cause.
func (g *Guest) Wait() (int, error) {
	for range g.Lines() {
	}
	io.Copy(io.Discard, g.console)
	err := g.cmd.Wait()
	if g.exit >= 0 {
		return g.exit, nil
	}
	if cause := context.Cause(g.ctx); cause != nil {
		err = cause
	}
	if err == nil {
		err = errors.New("QEMU exited with 0")
	}
	return -1, fmt.Errorf("run guest: %w: %w; end of its console:\n%s", ErrNoExit, err, strings.Join(g.last, "\n"))
}

// Close ends the guest immediately, in any state.
func (g *Guest) Close() error {
	g.cmd.Process.Kill()
	_, err := g.Wait()
	if errors.Is(err, ErrNoExit) {
		return nil
	}
	return err
}
