//go:build inguest

package v2

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const root = "/sys/fs/cgroup"

// mode is the variable that makes this test binary another program: see child.
const mode = "QUELL_TEST_V2"

func TestMain(m *testing.M) {
	switch os.Getenv(mode) {
	case "":
		quelltest.Main(m)
	case "mkdir":
		for _, dir := range os.Args[1:] {
			if err := os.Mkdir(dir, 0o755); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	case "touch":
		touch()
	case "write":
		write()
	case "io":
		fmt.Println(stress(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
		os.Exit(1)
	}
}

// machine opens the guest and checks that it has cgroup2 only.
func machine(t *testing.T) *host.Host {
	t.Helper()
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	if l := h.Layout(); l.Kind != host.V2 || l.Unified != root {
		t.Fatalf("layout %+v, want cgroup2 alone", l)
	}
	return h
}

// cgroup creates a cgroup, and removes it with the test. files are "name=value", written
// in order.
func cgroup(t *testing.T, path string, files ...string) string {
	t.Helper()
	dir := filepath.Join(root, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	for _, f := range files {
		name, value, _ := strings.Cut(f, "=")
		put(t, filepath.Join(dir, name), value)
	}
	return path
}

// inner is the setting of a cgroup that has child cgroups: it enables the controllers.
const inner = "cgroup.subtree_control=+cpu +cpuset +io +memory"

func remove(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	quelltest.Until(t, dir+" can be removed", func() bool {
		err := unix.Rmdir(dir)
		return err == nil || errors.Is(err, unix.ENOENT)
	})
}

func put(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// text is the exact content of a file of a cgroup.
func text(t *testing.T, path, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// burn runs a process that never sleeps in a cgroup, on one CPU.
func burn(t *testing.T, path string, cpu int) (pid int) {
	t.Helper()
	pid = spin()
	if pid < 0 {
		t.Fatal(syscall.Errno(-pid))
	}
	t.Cleanup(func() { end(t, pid) })
	// In this order: before Linux 6.2 a process that enters another cpuset may run on all
	// of its CPUs, whatever its affinity was.
	put(t, filepath.Join(root, path, "cgroup.procs"), strconv.Itoa(pid))
	move(t, pid, cpu)
	return pid
}

// move binds a process with one thread to another CPU.
func move(t *testing.T, pid, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		t.Fatal(err)
	}
}

// end kills a child that burns; it may already have ended.
func end(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); errors.Is(err, unix.ESRCH) {
		return
	}
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil && !errors.Is(err, unix.ECHILD) {
		t.Error(err)
	}
}

// child runs this binary in another mode: until it ends or, if path is a cgroup, in the
// background in that cgroup. edit may change the command.
func child(t *testing.T, what, path string, edit func(*exec.Cmd), args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), mode+"="+what, "GOMAXPROCS=1")
	cmd.Stderr = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if edit != nil {
		edit(cmd)
	}
	if path == "" {
		if out, err := cmd.Output(); err != nil {
			t.Fatalf("%s %v: %v: %s", what, args, err, out)
		}
		return cmd
	}
	dir, err := os.Open(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// change returns writes as a change for the enforcer.
func change(dir string, inode uint64, w []host.Write) enforce.Change {
	now := sample.At(time.Now())
	return enforce.Change{ID: dir, Dir: dir, Inode: inode, Writes: w, From: now, Until: now.Add(time.Hour), Who: "test", Why: "test"}
}

// apply applies the writes with an enforcer, calls during, and undoes them.
func apply(t *testing.T, h *host.Host, dir string, inode uint64, w []host.Write, during func()) {
	t.Helper()
	e, err := enforce.Open(t.TempDir(), h)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := change(dir, inode, w)
	if err := e.Apply(c.From, c); err != nil {
		t.Fatal(err)
	}
	during()
	if out, err := e.Undo(c.From, c.ID, "test"); err != nil || out.Result != enforce.Restored {
		t.Errorf("undo: %v %s, %v", out.Result, out.Note, err)
	}
}

// rate measures the CPU usage of a cgroup over some time, in CPU-s/s.
func rate(t *testing.T, h *host.Host, path string, wall time.Duration) float64 {
	t.Helper()
	c, err := h.OpenCgroup(sample.Unified, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	usage := func() time.Duration {
		u, err := c.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return u.CPU
	}
	begin, before := time.Now(), usage()
	<-time.After(wall)
	used := usage() - before
	return used.Seconds() / time.Since(begin).Seconds()
}
