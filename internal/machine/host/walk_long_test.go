package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
)

// nested makes directories in each other, from each other's descriptors, so that the path of
// the last is longer than any path of a system call, and a file in each. It returns their
// number. They are removed with the test.
func nested(t *testing.T, dir, name string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fds := []int{at}
	for range depth {
		err := unix.Mkdirat(at, name, 0o755)
		var next, file int
		if err == nil {
			next, err = unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if err == nil {
			file, err = unix.Openat(next, "cgroup.procs", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		}
		if err == nil {
			_, err = unix.Write(file, []byte("4711\n"))
			unix.Close(file)
		}
		if err != nil {
			t.Fatal(err)
		}
		fds, at = append(fds, next), next
	}
	t.Cleanup(func() {
		for i := len(fds) - 1; i > 0; i-- {
			unix.Close(fds[i])
			unix.Unlinkat(fds[i-1], name+"/cgroup.procs", 0)
			if err := unix.Unlinkat(fds[i-1], name, unix.AT_REMOVEDIR); err != nil {
				t.Error(err)
			}
		}
		unix.Close(fds[0])
	})
}

// flat is a host of text files with a cgroup2 of some cgroups.
func flat(t *testing.T, cgroups ...string) (h *Host, top string) {
	t.Helper()
	a := &txtar.Archive{Files: []txtar.File{{Name: "proc/self/mountinfo",
		Data: []byte("24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")}}}
	for _, c := range cgroups {
		a.Files = append(a.Files, txtar.File{Name: "sys/fs/cgroup" + c + "/cgroup.procs"})
	}
	h = unpack(t, a)
	return h, h.Path("/sys/fs/cgroup")
}

// A tenant that makes a cgroup whose path is too long for any system call does not hide the
// other tenants' cgroups, before and after its own in the order of the walk: the cgroup is
// left out, counted and named.
func TestLongPathHidesNoOtherCgroup(t *testing.T) {
	h, top := flat(t, "/a/x", "/hostile", "/z/y")
	nested(t, top+"/hostile", strings.Repeat("n", 250), 40)
	w, err := h.Watch(anywhere, ofNone)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var seen []string
	unread, err := h.WalkAt(Place{sample.Unified, "/"}, func(p string, _ uint64) error {
		if !strings.Contains(p, "n") {
			seen = append(seen, p)
		} else if len(h.Path("/sys/fs/cgroup"+p)) > longestDir {
			t.Errorf("a path of %d bytes is followed", len(p))
		}
		return nil
	})
	if want := []string{"/", "/a", "/a/x", "/hostile", "/z", "/z/y"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("the walk saw %q, %v; want %q", seen, err, want)
	}
	if unread.N != 1 || !strings.HasPrefix(unread.First, "/hostile/nnn") || !errors.Is(unread.Err, unix.ENAMETOOLONG) {
		t.Errorf("left out: %d, first of %d bytes, %v", unread.N, len(unread.First), unread.Err)
	}
	if text := unread.AsError().Error(); len(text) > 400 || !strings.Contains(text, "1 cgroups were left out") || !strings.Contains(text, "/hostile/nnn") {
		t.Errorf("the error is %s", text)
	}
	// The watch reports what is made elsewhere, and next to the long one.
	for _, p := range []string{"/z/new", "/hostile/new"} {
		if err := os.Mkdir(top+p, 0o755); err != nil {
			t.Fatal(err)
		}
		if changes, err := w.Changes(); err != nil || !slices.Contains(changes.Places, Place{sample.Unified, p}) {
			t.Errorf("after mkdir %s: %+v, %v", p, changes, err)
		}
	}
}

// What is in a task's cgroups with long paths belongs to the task nevertheless, and takes a
// few descriptors, however deep they are.
func TestLongPathsBelongToTheirTask(t *testing.T) {
	const depth = 600
	h, top := flat(t, "/hostile", "/other")
	if err := os.WriteFile(top+"/hostile/cpu.stat", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	nested(t, top+"/hostile", "dir-0123456789", depth)
	c, err := h.OpenCgroup(sample.Unified, "/hostile")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	highest := 0
	for _, e := range open {
		var n int
		for _, d := range e.Name() {
			n = n*10 + int(d-'0')
		}
		highest = max(highest, n)
	}
	few := old
	few.Cur = uint64(highest) + 8
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	below, err := c.Below()
	if err != nil || len(below) != depth {
		t.Errorf("%d cgroups below, %v; want %d", len(below), err, depth)
	}
	if pids, err := c.Members(); err != nil || !slices.Equal(pids, []int{4711}) {
		t.Errorf("members %v, %v", pids, err)
	}
}

// A file below a long path can be read and written, so that a v1 quota there can be lowered.
func TestFilesBelowALongPath(t *testing.T) {
	h, top := flat(t, "/hostile")
	name := strings.Repeat("n", 250)
	nested(t, top+"/hostile", name, 40)
	dir := "/sys/fs/cgroup/hostile" + strings.Repeat("/"+name, 40)
	file := dir + "/cgroup.procs"
	if v, err := h.ReadValue(file); err != nil || v != "4711" {
		t.Errorf("reads %q, %v", v, err)
	}
	if err := h.WriteValue(file, "1"); err != nil {
		t.Error(err)
	}
	if v, err := h.ReadValue(file); err != nil || v != "1" {
		t.Errorf("reads %q, %v after a write", v, err)
	}
	if ino, err := h.Inode(dir); err != nil || ino == 0 {
		t.Errorf("inode %d, %v", ino, err)
	}
	if _, err := h.ReadValue(dir + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// A directory that the walk stands in, and those above it, may be removed meanwhile.
func TestWalkComesBackFromWhatIsRemoved(t *testing.T) {
	h, top := flat(t, "/a/b/c/d", "/a/z", "/y")
	var seen []string
	_, err := h.WalkAt(Place{sample.Unified, "/"}, func(p string, _ uint64) error {
		seen = append(seen, p)
		if p == "/a/b/c/d" { // it stands in c
			return errors.Join(os.RemoveAll(filepath.Join(top, "a/b")), os.MkdirAll(filepath.Join(top, "a/b/new"), 0o755))
		}
		return nil
	})
	if want := []string{"/", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/z", "/y"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("saw %q, %v; want %q", seen, err, want)
	}
}

// A task with very many cgroups is looked at in part: the time that takes belongs to all tasks.
func TestCrowdedTaskIsLookedAtInPart(t *testing.T) {
	h, top := flat(t, "/hostile", "/other")
	if err := os.WriteFile(top+"/hostile/cpu.stat", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range mostBelow + 100 {
		if err := os.Mkdir(filepath.Join(top, "hostile", strconv.Itoa(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, err := h.OpenCgroup(sample.Unified, "/hostile")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	now := time.Now()
	h.crowds.now = func() time.Time { return now }
	crowded := func(when string) {
		t.Helper()
		if below, err := c.Below(); !errors.Is(err, ErrCrowded) || len(below) != mostBelow-1 {
			t.Errorf("%s: %d cgroups below, %v", when, len(below), err)
		}
		if _, err := c.Members(); !errors.Is(err, ErrCrowded) {
			t.Errorf("%s: members: %v", when, err)
		}
		if _, err := c.Threads(); !errors.Is(err, ErrCrowded) {
			t.Errorf("%s: threads: %v", when, err)
		}
	}
	crowded("at first")
	// The walk that finds tasks leaves none out.
	n := 0
	unread, err := h.WalkAt(Place{sample.Unified, "/"}, func(string, uint64) error { n++; return nil })
	if err != nil || n != mostBelow+103 || unread.N != 0 {
		t.Errorf("%d cgroups, %d left out, %v", n, unread.N, err)
	}
	// It is not walked again for a while: nothing of what has changed is seen.
	const left = 3
	for i := range mostBelow + 100 - left {
		if err := os.Remove(filepath.Join(top, "hostile", strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(crowdedPause - 1)
	crowded("soon after")
	now = now.Add(crowdedPause + 1)
	if below, err := c.Below(); err != nil || len(below) != left {
		t.Errorf("later: %d cgroups below, %v", len(below), err)
	}
	if _, err := c.Members(); err != nil {
		t.Errorf("later: members: %v", err)
	}
}

// A walk that has no descriptor to come back with does not end as if there was nothing else.
func TestAWalkWithoutDescriptorsFails(t *testing.T) {
	h, _ := flat(t, "/a/x", "/z")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	_, err := h.WalkAt(Place{sample.Unified, "/"}, func(p string, _ uint64) error {
		if p != "/a/x" {
			return nil
		}
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max})
	})
	if !errors.Is(err, unix.EMFILE) {
		t.Error(err)
	}
}
