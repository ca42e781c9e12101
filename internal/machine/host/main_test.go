package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// childMode makes this test binary a process to put into cgroups.
const childMode = "QUELL_HOST_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childMode) {
	case "":
		quelltest.Main(m)
	case "burn":
		for n := 0; ; n++ {
		}
	case "wait":
		io.Copy(io.Discard, os.Stdin)
	case "disk":
		if err := writeDisk(os.Getenv(diskEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// child starts a process that ends with the test. "burn" uses a CPU, "wait"
// does nothing; both have several threads.
func child(t testing.TB, mode string) int {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childMode+"="+mode)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		stdin.Close()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// real opens this machine.
func real(t testing.TB) *Host {
	t.Helper()
	h, err := Open("/")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// realCPU opens this machine if cgroups with the cpu controller can be made.
func realCPU(t testing.TB) (*Host, sample.Hierarchy) {
	t.Helper()
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	hier, ok := h.Layout().CPU()
	if ok && hier == sample.V1CPU {
		quelltest.Need(t, quelltest.CgroupV1)
	} else {
		quelltest.Need(t, quelltest.Cgroup2CPU)
	}
	return h, hier
}

// mkcgroup makes a cgroup, named by tree and path, that is removed with the
// test; its processes must have ended by then. It returns the path.
func mkcgroup(t testing.TB, h *Host, tree, below string) string {
	t.Helper()
	p := path.Join("/", below)
	if path.Dir(p) == "/" {
		p = fmt.Sprintf("/quell-test-host-%d-%s", os.Getpid(), path.Base(p))
	}
	dir := path.Join(h.trees[tree].dir, p)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rmcgroup(t, dir) })
	return p
}

func rmcgroup(t testing.TB, dir string) {
	t.Helper()
	quelltest.Until(t, "rmdir "+dir, func() bool {
		err := os.Remove(dir)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
}

// put writes a value to a file of a cgroup.
func put(t testing.TB, h *Host, tree, p, file, value string) {
	t.Helper()
	if err := h.WriteValue(path.Join(h.trees[tree].dir, p, file), value); err != nil {
		t.Fatal(err)
	}
}

func move(t testing.TB, h *Host, tree, p string, pid int) {
	t.Helper()
	put(t, h, tree, p, "cgroup.procs", strconv.Itoa(pid))
}

// treeOf names the tree of an identity hierarchy.
func treeOf(hier sample.Hierarchy) string {
	if hier == sample.V1CPU {
		return "cpu"
	}
	return ""
}

func open(t testing.TB, h *Host, hier sample.Hierarchy, p string) *Cgroup {
	t.Helper()
	c, err := h.OpenCgroup(hier, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, unix.EBADF) {
			t.Error(err)
		}
	})
	return c
}

// fixture opens a host of testdata/hosts, unpacked as files.
func fixture(t testing.TB, name string) *Host {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("..", "..", "..", "testdata", "hosts", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	return unpack(t, a)
}

func unpack(t testing.TB, a *txtar.Archive) *Host {
	t.Helper()
	root := t.TempDir()
	for _, f := range a.Files {
		file := filepath.Join(root, f.Name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
