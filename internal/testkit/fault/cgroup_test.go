package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// limit is a v1 cgroup's CPU limit, µs as text; the quota is -1 for none.
type limit struct{ quota, period string }

func (l limit) String() string { return l.quota + "/" + l.period }

// cgroup is a cgroup of this tool's own, with a process in it that waits.
type cgroup struct {
	dir   string // absolute
	path  string // in the hierarchy
	pid   int
	close func()
}

func newCgroup(h *host.Host, path string) (*cgroup, error) {
	mount, ok := h.Layout().V1["cpu"]
	if !ok {
		return nil, errors.New("needs the v1 cpu controller")
	}
	c := &cgroup{dir: filepath.Join(mount, path), path: path}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a process: %w", err), os.Remove(c.dir))
	}
	c.pid = cmd.Process.Pid
	c.close = func() {
		_ = in.Close() // cat ends with its input
		_ = cmd.Wait()
		_ = workload.RemoveCgroups(c.dir)
	}
	return c, c.enter(c.dir)
}

func (c *cgroup) enter(dir string) error {
	return host.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(c.pid))
}

// remove moves the process to the parent and removes the cgroup.
func (c *cgroup) remove() error {
	if err := c.enter(filepath.Dir(c.dir)); err != nil {
		return err
	}
	return workload.RemoveCgroups(c.dir)
}

// again makes the cgroup again, with the limit and its process.
func (c *cgroup) again(l limit) error {
	if err := os.Mkdir(c.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(c.enter(c.dir), c.set(l))
}

func (c *cgroup) exists() bool {
	_, err := os.Stat(c.dir)
	return err == nil
}

func (c *cgroup) quotaFile() string  { return filepath.Join(c.dir, "cpu.cfs_quota_us") }
func (c *cgroup) periodFile() string { return filepath.Join(c.dir, "cpu.cfs_period_us") }

// set writes a limit in an order that the kernel accepts whatever the old limit was.
func (c *cgroup) set(l limit) error {
	return errors.Join(host.WriteFile(c.quotaFile(), "-1"), host.WriteFile(c.periodFile(), l.period), host.WriteFile(c.quotaFile(), l.quota))
}

func (c *cgroup) get(h *host.Host) (l limit, err error) {
	if l.quota, err = h.ReadValue(c.quotaFile()); err == nil {
		l.period, err = h.ReadValue(c.periodFile())
	}
	return l, err
}
