package host

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// without runs f while this process can open no file.
func without(t *testing.T, f func()) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	highest := 0
	for _, e := range entries {
		n, _ := strconv.Atoi(e.Name())
		highest = max(highest, n)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = uint64(highest) + 1
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	var fill []*os.File // the numbers below the highest that are free
	for {
		f, err := os.Open("/dev/null")
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fill = append(fill, f)
	}
	f()
	for _, f := range fill {
		f.Close()
	}
}

// Files that are held are read and written without a descriptor to spare, a line of a file
// with a line for each device too; others are not.
func TestHeldFilesNeedNoDescriptor(t *testing.T) {
	h, top := flat(t, "/a")
	dir := "/sys/fs/cgroup/a/"
	for name, text := range map[string]string{"cpu.max": "max 100000\n", "io.max": "8:0 rbps=1 wbps=max riops=max wiops=max\n", "other": "1\n"} {
		if err := os.WriteFile(top+"/a/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // two changes of the same file
		if err := h.Hold(dir+"cpu.max", dir+"io.max#8:0"); err != nil {
			t.Fatal(err)
		}
	}
	h.Release(dir+"cpu.max", dir+"io.max#8:16")
	if err := h.Hold(dir+"cpu.max", dir+"none"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("hold a file that is not there: %v", err)
	}
	without(t, func() {
		if v, err := h.ReadValue(dir + "cpu.max"); err != nil || v != "max 100000" {
			t.Errorf("reads %q, %v", v, err)
		}
		if err := h.WriteValue(dir+"cpu.max", "10000 5000"); err != nil {
			t.Error(err)
		}
		if v, err := h.ReadValue(dir + "cpu.max"); err != nil || v != "10000 5000" {
			t.Errorf("reads %q, %v after a shorter value", v, err)
		}
		if v, err := h.ReadValue(dir + "io.max#8:0"); err != nil || v != "rbps=1 wbps=max riops=max wiops=max" {
			t.Errorf("reads %q, %v of a device", v, err)
		}
		if _, err := h.ReadValue(dir + "other"); !errors.Is(err, unix.EMFILE) {
			t.Errorf("another file: %v; want EMFILE, or this shows nothing", err)
		}
		if _, err := h.Inode(dir); err != nil {
			t.Error(err)
		}
	})
	h.Release(dir+"cpu.max", dir+"io.max#8:0", dir+"cpu.max")
	if len(h.held.files) != 0 {
		t.Errorf("%d files are held after each was released", len(h.held.files))
	}
}

// A held file is found under its former path after its cgroup was renamed, and not after that was removed.
func TestHeldFileOfARenamedCgroup(t *testing.T) {
	h, top := flat(t, "/a")
	const dir = "/sys/fs/cgroup/a"
	if h.Held(dir) {
		t.Error("nothing is held yet")
	}
	if err := h.Hold(dir + "/cgroup.procs"); err != nil {
		t.Fatal(err)
	}
	defer h.Release(dir + "/cgroup.procs")
	if err := os.Rename(top+"/a", top+"/b"); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteValue(dir+"/cgroup.procs", "1"); err != nil || !h.Held(dir) || h.Held("/sys/fs/cgroup/b") {
		t.Errorf("renamed: %v, held %v", err, h.Held(dir))
	}
	if err := os.RemoveAll(top + "/b"); err != nil {
		t.Fatal(err)
	}
	if h.Held(dir) {
		t.Error("it is held after it was removed")
	}
}

// A held file of a cgroup that was removed does not stand for the one made at its path.
func TestHeldFileOfARemovedCgroup(t *testing.T) {
	h, hier := realCPU(t)
	tree := treeOf(hier)
	p := mkcgroup(t, h, tree, "held")
	dir := h.trees[tree].dir + p
	file := dir + "/cpu.max"
	if tree == "cpu" {
		file = dir + "/cpu.cfs_quota_us"
	}
	quelltest.Need(t, quelltest.Root)
	if err := h.Hold(file); err != nil {
		t.Fatal(err)
	}
	defer h.Release(file)
	if err := h.WriteValue(file, "50000"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if v, err := h.ReadValue(file); !vanished(err) {
		t.Errorf("reads %q, %v of a removed cgroup", v, err)
	}
	if err := h.WriteValue(file, "40000"); !vanished(err) {
		t.Errorf("writes to a removed cgroup: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if v, err := h.ReadValue(file); err != nil || v == "50000" {
		t.Errorf("reads %q, %v of the cgroup made again", v, err)
	}
}
