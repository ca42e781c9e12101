package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// contender is a program whose cost is measured.
type contender struct {
	name string
	// heavy contenders are measured alone.
	heavy bool
	// unified: it expects cgroup2 at /sys/fs/cgroup, and gets it there in its
	// own mount namespace.
	unified bool
	// names: its metrics name every cgroup. If they do not, it does not do the
	// work that it is measured for.
	names bool
	// commands returns its commands for n cgroups of the crowd, and the address
	// of its metrics, "" if it has none.
	commands func(r *run, n int) (argv [][]string, scrape string, err error)
	// absent is the reason why it cannot be measured here.
	absent error
}

// The agent's configurations. The sweep reads counters, usage and pressure of
// every task every 10 s and counts without a pause. The default is the paper's
// 10 s in 60 s, of every signal that is on by default.
const (
	sweepName   = "quell-agent, sweep every 10 s"
	defaultName = "quell-agent, default (10 s in 60 s)"
	floorName   = "floor, every 10 s"
	awake       = ", tasks awake" // suffix of a name: each task runs every second
)

func sweepEvery10s() contender {
	return contender{name: sweepName, commands: func(r *run, n int) ([][]string, string, error) {
		return r.agentCommand("sweep", "--set", "signals=cpi", "--set", "sampling.max_tax=0", "--set", "sampling.period=10s", "--set", "sampling.duration=10s")
	}}
}

func defaultAgent() contender {
	return contender{name: defaultName, commands: func(r *run, n int) ([][]string, string, error) {
		return r.agentCommand("default", "--set", "sampling.max_tax=0")
	}}
}

func floor() contender {
	return contender{name: floorName, commands: func(r *run, n int) ([][]string, string, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, "", err
		}
		var argv [][]string
		for from := 0; from < n; from += floorMost { // as many cgroups as the descriptors suffice for
			argv = append(argv, append([]string{self}, floorArgs(r.tree.dir(crowdName), from, min(n, from+floorMost), 10*time.Second)...))
		}
		return argv, "", nil
	}}
}

// floorMost is the number of cgroups that one process of the floor reads.
const floorMost = 2000

// agentCommand returns the command of the shipped agent over the crowd and nothing else.
func (r *run) agentCommand(name string, set ...string) ([][]string, string, error) {
	dir := filepath.Join(r.scratch, name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", err
	}
	listen, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	conf := filepath.Join(dir, "agent.yaml")
	text := fmt.Sprintf("state_dir: %q\nsocket: %q\nlisten: %q\nenforce: {mode: on}\nrules:\n  - {match: %q, job: \"app-$1\", class: batch}\n",
		dir, filepath.Join(dir, "s"), listen, "/"+r.tree.name+"/"+crowdName+"/app-*.*")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, "", err
	}
	return [][]string{append([]string{r.agent, "--config", conf}, set...)}, "http://" + listen + "/metrics", nil
}

// freeAddress returns a loopback address that was free a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// started is a contender that is running.
type started struct {
	contender
	meter  string // its cgroup in the tree
	procs  []*exec.Cmd
	scrape string
	log    string
}

// start starts a contender in a cgroup of its own, and waits until it is ready.
func (r *run) start(ctx context.Context, c contender, n int) (*started, error) {
	argv, scrape, err := c.commands(r, n)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	r.starts++
	s := &started{contender: c, meter: fmt.Sprintf("meter-%d", r.starts), scrape: scrape,
		log: filepath.Join(r.scratch, fmt.Sprintf("%d.log", r.starts))}
	logFile, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	for _, args := range argv {
		cmd := exec.Command(args[0], args[1:]...)
		if c.unified && r.tree.mount != cgroupRoot {
			self, err := os.Executable()
			if err != nil {
				return nil, err
			}
			cmd = exec.Command(self, append([]string{"unify", r.tree.mount}, args...)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		}
		cmd.Stderr = logFile
		var out io.ReadCloser
		if strings.HasPrefix(c.name, floorName) {
			if out, err = cmd.StdoutPipe(); err != nil {
				return nil, err
			}
		} else {
			cmd.Stdout = logFile
		}
		if err := r.tree.start(s.meter, cmd); err != nil {
			return nil, errors.Join(fmt.Errorf("start %s: %w", c.name, err), s.stop())
		}
		s.procs = append(s.procs, cmd)
		if out != nil {
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready") {
				return nil, errors.Join(fmt.Errorf("start %s: unexpected output %q: %s", c.name, line, s.tail()), s.stop())
			}
		}
	}
	return s, nil
}

// tail returns the end of the contender's log.
func (s *started) tail() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	const most = 600
	return string(text[max(0, len(text)-most):])
}

// dead returns an error if one of the contender's processes has ended.
func (s *started) dead() error {
	for _, p := range s.procs {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == nil && info.Signo != 0 {
			return fmt.Errorf("%s has ended: %s", s.name, s.tail())
		}
	}
	return nil
}

// stop ends the contender: with SIGTERM, and after 5 s with SIGKILL.
func (s *started) stop() error {
	var errs []error
	for _, p := range s.procs {
		if err := p.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		timer := time.AfterFunc(5*time.Second, func() { p.Process.Kill() })
		// How it ended does not matter: it was measured while it ran.
		_ = p.Wait()
		timer.Stop()
	}
	return errors.Join(errs...)
}

// cgroupRoot is where cgroup2 is on machines without v1.
const cgroupRoot = "/sys/fs/cgroup"

// runUnify replaces this process with the command that follows the mount's
// path, with that mount at /sys/fs/cgroup. It is called in its own mount
// namespace and returns only with an error.
func runUnify(args []string) error {
	if len(args) < 2 {
		return errors.New("unify: want MOUNT COMMAND…")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("unify: make mounts private: %w", err)
	}
	if err := unix.Mount(args[0], cgroupRoot, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("unify: bind %s: %w", args[0], err)
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return fmt.Errorf("unify: %w", err)
	}
	return unix.Exec(path, args[1:], os.Environ())
}
