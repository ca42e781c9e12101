package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
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
	// ready reports that it has begun to work; nil for a contender that tells otherwise, or not.
	ready func(r *run) (bool, error)
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

	bpftraceName = "bpftrace, CPU time by cgroup, every 10 s"
	awake        = ", tasks awake" // suffix of a name: each task runs every second
)

func sweepEvery10s() contender {
	return contender{name: sweepName, commands: func(r *run, n int) ([][]string, string, error) {
		return r.agentCommand("sweep", crowdMatch, "signals=cpi", "sampling.max_tax=0", "sampling.period=10s", "sampling.duration=10s")
	}}
}

func defaultAgent() contender {
	return contender{name: defaultName, commands: func(r *run, n int) ([][]string, string, error) {
		return r.agentCommand("default", crowdMatch, "sampling.max_tax=0")
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

// crowdMatch matches the crowd's cgroups, below the tree.
const crowdMatch = crowdName + "/app-*.*"

// agentCommand returns the command of the shipped agent over some cgroups and nothing else.
func (r *run) agentCommand(name, match string, settings ...string) ([][]string, string, error) {
	dir := filepath.Join(r.scratch, name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, "", err
	}
	listen, err := child.FreeAddress()
	if err != nil {
		return nil, "", err
	}
	cmd, err := child.Agent(r.agent, dir, fmt.Sprintf("listen: %q\nenforce: {mode: on}\nrules:\n  - {match: %q, job: \"app-$1\", class: batch}\n",
		listen, "/"+r.tree.name+"/"+match))
	if err != nil {
		return nil, "", err
	}
	for _, s := range settings {
		cmd.Args = append(cmd.Args, "--set", s)
	}
	return [][]string{cmd.Args}, "http://" + listen + "/metrics", nil
}

// started is a contender that is running.
type started struct {
	contender
	meter  string // its cgroup in the tree
	procs  []*child.Process
	scrape string
}

// start starts a contender in a cgroup of its own, and waits until it is ready.
func (r *run) start(c contender, n int) (_ *started, err error) {
	argv, scrape, err := c.commands(r, n)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	r.starts++
	s := &started{contender: c, meter: fmt.Sprintf("meter-%d", r.starts), scrape: scrape}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	options := child.Options{Name: c.name, Log: filepath.Join(r.scratch, fmt.Sprintf("%d.log", r.starts)), Append: true,
		Launch: func(cmd *exec.Cmd) error { return r.tree.start(s.meter, cmd) }}
	for _, args := range argv {
		cmd := exec.Command(args[0], args[1:]...)
		if c.unified && r.tree.mount != cgroupRoot {
			script := "mount --bind " + r.tree.mount + " " + cgroupRoot + ` && exec "$@"`
			cmd = exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, "sh"}, args...)...)
		}
		isFloor := strings.HasPrefix(c.name, floorName)
		var out io.ReadCloser
		if isFloor {
			if out, err = cmd.StdoutPipe(); err != nil {
				return nil, err
			}
		}
		p, err := child.Start(cmd, options)
		if err != nil {
			return nil, err
		}
		s.procs = append(s.procs, p)
		if isFloor {
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready") {
				return nil, fmt.Errorf("start %s: unexpected output %q: %s", c.name, line, p.Tail())
			}
		}
	}
	return s, nil
}

// tail returns the end of the contender's log, which its processes share.
func (s *started) tail() string { return s.procs[0].Tail() }

// dead returns an error if one of the contender's processes has ended.
func (s *started) dead() error {
	for _, p := range s.procs {
		select {
		case <-p.Done():
			return fmt.Errorf("%s has ended: %s", s.name, s.tail())
		default:
		}
	}
	return nil
}

// stop ends the contender. How it ends does not matter: it was measured while it ran.
func (s *started) stop() {
	for _, p := range s.procs {
		_ = p.Stop(5 * time.Second)
	}
}

// cgroupRoot is where cgroup2 is on machines without v1.
const cgroupRoot = "/sys/fs/cgroup"
