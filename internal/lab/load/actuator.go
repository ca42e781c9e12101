package load

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Actuator stops a role and lets it run again. When Stop returns, nothing of the role
// runs any more. A repeated call of either does nothing.
type Actuator interface {
	Stop() error
	Continue() error
}

// Freezer stops a cgroup and all its present and future descendants by the kernel's
// freezer: cgroup2's cgroup.freeze (cgroup-v2.rst) or v1's freezer.state
// (freezer-subsystem.rst).
type Freezer struct {
	file, stop, run string
	state, frozen   string // file to read, and its content when all is stopped
}

// ErrNoFreezer says that a cgroup's directory has no freezer.
var ErrNoFreezer = errors.New("neither cgroup.freeze (cgroup2) nor freezer.state (v1) exists")

// OpenFreezer finds the freezer in a cgroup's directory and registers it with the
// guard, which may be nil if the caller has its own way to thaw.
func OpenFreezer(dir string, g *Guard) (*Freezer, error) {
	f := &Freezer{filepath.Join(dir, "cgroup.freeze"), "1", "0", filepath.Join(dir, "cgroup.events"), "frozen 1"}
	if _, err := os.Stat(f.file); errors.Is(err, fs.ErrNotExist) {
		state := filepath.Join(dir, "freezer.state")
		f = &Freezer{state, "FROZEN", "THAWED", state, "FROZEN"}
		if _, err := os.Stat(state); err != nil {
			return nil, fmt.Errorf("freeze %s: %w", dir, ErrNoFreezer)
		}
	}
	if g != nil {
		if err := g.watch("write", f.file, f.run); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// patienceToFreeze is the time limit for a freeze: a task in an uninterruptible call
// stops only when that call ends.
const patienceToFreeze = 2 * time.Second

// Stop freezes, and waits until everything is frozen.
func (f *Freezer) Stop() error {
	if err := host.WriteFile(f.file, f.stop); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	for begin, pause := time.Now(), 20*time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		text, err := os.ReadFile(f.state)
		if err != nil {
			return fmt.Errorf("freeze: %w", err)
		}
		if strings.Contains(string(text), f.frozen) {
			return nil
		}
		if time.Since(begin) > patienceToFreeze {
			return fmt.Errorf("freeze: %s still reads %q after %s", f.state, strings.TrimSpace(string(text)), patienceToFreeze)
		}
		sleepUntil(time.Now().Add(pause))
	}
}

// Continue thaws.
func (f *Freezer) Continue() error {
	if err := host.WriteFile(f.file, f.run); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}

// Signals stops processes by SIGSTOP, like Showstopper. Unlike a freeze, that is
// visible to their parents, and a process that is created while the others are stopped
// runs until the next period.
type Signals struct {
	procs func() (string, error) // returns the text of a cgroup.procs file, or an equivalent
	guard *Guard
	known map[int]bool
}

// NewSignals stops the processes that a cgroup.procs file lists. It registers what it
// stops with the guard, unless that is nil.
func NewSignals(procs string, g *Guard) *Signals {
	read := func() (string, error) {
		text, err := os.ReadFile(procs)
		return string(text), err
	}
	return &Signals{read, g, map[int]bool{}}
}

// NewSignalsOf stops the processes of the threads that list returns.
func NewSignalsOf(list func() ([]int, error), g *Guard) *Signals {
	read := func() (string, error) {
		threads, err := list()
		return strings.Trim(fmt.Sprint(threads), "[]"), err
	}
	return &Signals{read, g, map[int]bool{}}
}

// Stop sends SIGSTOP to all processes, and repeats that until there are no new ones.
func (s *Signals) Stop() error { return s.signal(unix.SIGSTOP, true) }

// Continue sends SIGCONT.
func (s *Signals) Continue() error { return s.signal(unix.SIGCONT, false) }

func (s *Signals) signal(sig syscall.Signal, again bool) error {
	for sent := map[int]bool{}; ; {
		text, err := s.procs()
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		fresh := false
		for _, word := range strings.Fields(text) {
			pid, err := strconv.Atoi(word)
			if err != nil || pid <= 1 || sent[pid] {
				continue
			}
			if !s.known[pid] && s.guard != nil {
				if err := s.guard.watch("pid", word, startTime(word)); err != nil {
					return err
				}
			}
			s.known[pid], sent[pid], fresh = true, true, true
			if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("signal process %d: %w", pid, err)
			}
		}
		if !fresh || !again {
			return nil
		}
	}
}

// startTime is when a process began, which distinguishes it from a later one with the same
// pid; "" if it has ended.
func startTime(pid string) string {
	s, err := host.ReadProcessStat(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}
	return strconv.FormatUint(s.Start, 10)
}
