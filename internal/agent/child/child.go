// Package child runs one of quell's daemons as a child of another program: with its output
// in a log, which is quoted where the daemon fails, and ended as systemd would end it.
package child

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Options say how a daemon is started. Name is required.
type Options struct {
	Name   string // in errors, such as "the agent"
	Log    string // file for its output; "": its errors go to this program's standard error
	Append bool   // keep what is in the log
	// Launch starts the command; nil: cmd.Start.
	Launch func(cmd *exec.Cmd) error
}

// Process is a daemon that was started.
type Process struct {
	PID  int
	opt  Options
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended; valid after done
}

// Start starts a daemon in a process group of its own, so that an interrupt from the
// terminal is for this program only. If this program is killed the daemon gets SIGTERM: an
// agent then still undoes its caps.
func Start(cmd *exec.Cmd, o Options) (*Process, error) {
	cmd.Stderr = os.Stderr
	if o.Log != "" {
		flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
		if o.Append {
			flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
		}
		log, err := os.OpenFile(o.Log, flags, 0o644)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", o.Name, err)
		}
		defer log.Close()
		cmd.Stderr = log
		if cmd.Stdout == nil {
			cmd.Stdout = log
		}
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGTERM
	launch := o.Launch
	if launch == nil {
		launch = (*exec.Cmd).Start
	}
	p := &Process{opt: o, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the daemon ends
		// (prctl(2), PR_SET_PDEATHSIG), so this goroutine keeps that thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := launch(cmd)
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Name, err)
	}
	p.PID = cmd.Process.Pid
	return p, nil
}

// ErrSlow is the error of Until when the limit has passed.
var ErrSlow = errors.New("it did not")

// Until waits until the daemon does something, at most for the limit. cond reports whether
// it has; its errors end the wait.
func (p *Process) Until(ctx context.Context, limit time.Duration, do string, cond func() (bool, error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		if ok, err := cond(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.done:
			return fmt.Errorf("wait for %s to %s: it ended: %w", p.opt.Name, do, errors.Join(p.err, errors.New("too early")))
		case <-deadline.C:
			return fmt.Errorf("wait for %s to %s: %w after %s", p.opt.Name, do, ErrSlow, limit)
		case <-poll.C:
		}
	}
}

// lastWords is how long a daemon that hangs may take to write where, on a machine that may be short
// of CPU time.
const lastWords = 30 * time.Second

// Stop ends the daemon and returns how it ended. If it does not exit in time it is killed,
// after it has written to its log where it hangs.
func (p *Process) Stop(patience time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	var late error
	if !p.ends(patience) {
		late = fmt.Errorf("it did not exit within %s of SIGTERM; the end of its log shows where it hangs", patience)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		if !p.ends(lastWords) {
			late = errors.Join(late, p.Kill())
		}
	}
	if err := errors.Join(late, p.err); err != nil {
		return fmt.Errorf("stop %s: %w; its log: %s", p.opt.Name, err, p.Tail())
	}
	return nil
}

// Kill is kill -9.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}

// Done is closed when the daemon has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ends reports whether the daemon ends in time.
func (p *Process) ends(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// Tail is the end of the log.
func (p *Process) Tail() string {
	if p.opt.Log == "" {
		return "see above"
	}
	text, err := os.ReadFile(p.opt.Log)
	if err != nil {
		return err.Error()
	}
	return End(text)
}

// End is the end of a program's output, on one line.
func End(output []byte) string {
	const most = 600
	text := strings.TrimSpace(string(output))
	if len(text) > most {
		text = "…" + text[len(text)-most:]
	}
	return strings.ReplaceAll(text, "\n", " | ")
}

// FreeAddress returns a loopback address that was free a moment ago.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Agent returns the command of a quell-agent that has all its files in dir. It writes the
// configuration there, with the agent's folder and socket in addition. The agent works next
// to the machine's own: its tasks must be its caller's.
func Agent(program, dir, configuration string) (*exec.Cmd, error) {
	file := filepath.Join(dir, "agent.yaml")
	text := fmt.Sprintf("state_dir: %q\njournals: %q\nexclusive: false\nsocket: %q\n%s", dir, filepath.Join(dir, "journals"), Socket(dir), configuration)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write the agent's configuration: %w", err)
	}
	return exec.Command(program, "--config", file), nil
}

// Socket is the socket of an Agent.
func Socket(dir string) string { return filepath.Join(dir, "agent.sock") }

// Recorder returns the configuration of an agent that records samples in a trace, without
// its rules. No task is capped, and no signal is paused because it is expensive: this is a
// measurement.
func Recorder(trace string, signals []string, period time.Duration) string {
	// The loop's period is the precision of the window ends.
	tick := min(50*time.Millisecond, period)
	return fmt.Sprintf("listen: \"\"\nlog_level: warn\nrecord: %q\nsignals: [%s]\n", trace, strings.Join(signals, ", ")) +
		fmt.Sprintf("tick: %s\nsampling: {duration: %s, period: %s, max_tax: 0}\n", tick, period, period) +
		fmt.Sprintf("detect: {outlier_window: %s, window: %s}\nenforce: {mode: \"off\"}\n", 5*period, 10*period)
}
