package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// treePrefix is the prefix of the name of every tree that this program makes, so that
// workload.Sweep finds those of killed runs.
const treePrefix = "quell-test-bench"

// tree is this program's part of cgroup2.
type tree struct {
	mount string // of cgroup2
	name  string
}

func newTree(mount string) (*tree, error) {
	if _, err := workload.Sweep(treePrefix); err != nil {
		return nil, err
	}
	self, err := host.ReadProcessStat("/proc/self/stat")
	if err != nil {
		return nil, err
	}
	t := &tree{mount: mount, name: fmt.Sprintf("%s-%d-%d", treePrefix, os.Getpid(), self.Start)}
	if err := os.Mkdir(t.dir(""), 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	return t, nil
}

func (t *tree) dir(name string) string { return filepath.Join(t.mount, t.name, name) }

// remove ends what runs in the tree and removes it.
func (t *tree) remove() error { return workload.RemoveCgroups(t.dir("")) }

// start starts a command in the named cgroup of the tree, which is made if
// need be. The command dies with this process.
func (t *tree) start(name string, cmd *exec.Cmd) error {
	if err := os.MkdirAll(t.dir(name), 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	fd, err := unix.Open(t.dir(name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open cgroup %s: %w", name, err)
	}
	defer unix.Close(fd)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return cmd.Start()
}

// usage returns the CPU time that all processes of a cgroup have used, in s.
func (t *tree) usage(name string) (float64, error) {
	file := filepath.Join(t.dir(name), "cpu.stat")
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read usage: %w", err)
	}
	var us uint64
	if _, err := fmt.Sscanf(string(text), "usage_usec %d", &us); err != nil { // the first line
		return 0, fmt.Errorf("read usage: %s: %w", file, err)
	}
	return float64(us) / 1e6, nil
}

const (
	crowdName = "crowd"
	perJob    = 10 // tasks of a job
)

// crowd is n cgroups with one paused process each, ten to a job.
type crowd struct {
	t     *tree
	procs []*os.Process
}

// grow adds cgroups up to n. It must be called from the main thread: the
// processes end with the thread that started them.
func (c *crowd) grow(n int) error {
	for i := len(c.procs); i < n; i++ {
		cmd := exec.Command("sleep", "infinity")
		if err := c.t.start(filepath.Join(crowdName, podName(i)), cmd); err != nil {
			return fmt.Errorf("start paused process %d: %w", i+1, err)
		}
		c.procs = append(c.procs, cmd.Process)
	}
	return nil
}

func podName(i int) string { return fmt.Sprintf("app-%d.%d", i/perJob, i%perJob) }

// keepAwake runs every process for some µs each second until ctx ends, by stopping
// and continuing it. A paused task need not be read again; such a task must be.
func (c *crowd) keepAwake(ctx context.Context) {
	for tick := time.Tick(time.Second); ctx.Err() == nil; {
		for _, p := range c.procs {
			_ = p.Signal(unix.SIGSTOP) // they end with the crowd
			_ = p.Signal(unix.SIGCONT)
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// end ends the processes; the cgroups go with the tree.
func (c *crowd) end() error {
	var errs []error
	for _, p := range c.procs {
		errs = append(errs, p.Kill())
	}
	for _, p := range c.procs {
		_, err := p.Wait()
		errs = append(errs, err)
	}
	c.procs = nil
	return errors.Join(errs...)
}
