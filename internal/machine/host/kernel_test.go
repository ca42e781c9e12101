package host

import (
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// These tests run on this machine's kernel.

func TestUsageGrowsWhileAProcessBurnsAndCountsThrottling(t *testing.T) {
	h, hier := realCPU(t)
	p := mkcgroup(t, h, treeOf(hier), "burn")
	if hier == sample.V1CPU && h.trees["cpuacct"].dir != h.trees["cpu"].dir {
		mkcgroup(t, h, "cpuacct", "burn")
	}
	c := open(t, h, hier, p)
	before, err := c.Usage()
	if err != nil {
		t.Fatal(err)
	}
	pid := child(t, "burn")
	move(t, h, treeOf(hier), p, pid)
	if hier == sample.V1CPU {
		move(t, h, "cpuacct", p, pid)
	}
	if _, err := c.Places(); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "50 ms of CPU time are counted", func() bool {
		u, err := c.Usage()
		return err == nil && u.CPU > before.CPU+50*time.Millisecond
	})
	_, _, w, err := h.CapWrites(p, 0.05, 0)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, h, w)
	quelltest.Until(t, "throttling is counted", func() bool {
		u, err := c.Usage()
		return err == nil && u.Throttled > 10*time.Millisecond
	})
}

// A task of cgroup2 on a hybrid host is capped in the v1 hierarchy, so its
// throttling is counted there.
func TestUsageOfUnifiedTakesThrottlingFromV1(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1, quelltest.Cgroup2)
	h := real(t)
	p, cpu := mkcgroup(t, h, "", "hybrid"), mkcgroup(t, h, "cpu", "hybrid-elsewhere")
	c := open(t, h, sample.Unified, p)
	pid := child(t, "burn")
	move(t, h, "", p, pid)
	move(t, h, "cpu", cpu, pid)
	put(t, h, "cpu", cpu, "cpu.cfs_quota_us", "5000")
	got, err := c.Places()
	if err != nil || got.CPU != cpu || got.Unified != p || got.Split {
		t.Fatalf("Places() = %+v, %v; want cpu %s", got, err, cpu)
	}
	quelltest.Until(t, "usage and throttling are counted", func() bool {
		u, err := c.Usage()
		return err == nil && u.CPU > 0 && u.Throttled > 0
	})
}

func TestRemovedCgroupIsGoneAlsoWhenItsPathIsUsedAgain(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	for _, hier := range identities(t, h) {
		t.Run(hier.String(), func(t *testing.T) {
			p := mkcgroup(t, h, treeOf(hier), "gone")
			c := open(t, h, hier, p)
			first := c.Inode()
			if got, err := h.Inode(c.Dir()); err != nil || got != first {
				t.Fatalf("Inode() = %d, %v; the cgroup has %d", got, err, first)
			}
			if err := os.Remove(c.Dir()); err != nil {
				t.Fatal(err)
			}
			gone := func(when string) {
				t.Helper()
				if _, err := c.Usage(); !errors.Is(err, ErrGone) {
					t.Errorf("%s: Usage() = %v", when, err)
				}
				if _, err := c.Members(); !errors.Is(err, ErrGone) {
					t.Errorf("%s: Members() = %v", when, err)
				}
				if _, err := c.Below(); when != "removed" && !errors.Is(err, ErrGone) {
					t.Errorf("%s: Below() = %v", when, err)
				}
				if _, err := c.Stalled("cpu"); !errors.Is(err, ErrGone) && !errors.Is(err, ErrNoPSI) {
					t.Errorf("%s: Stalled() = %v", when, err)
				}
			}
			gone("removed")
			if _, err := h.OpenCgroup(hier, p); !errors.Is(err, ErrGone) {
				t.Errorf("OpenCgroup of a removed path: %v", err)
			}
			if err := os.Mkdir(c.Dir(), 0o755); err != nil {
				t.Fatal(err)
			}
			gone("made again")
			again := open(t, h, hier, p)
			if again.Inode() == first {
				t.Errorf("the new cgroup has the inode of the old one, %d", first)
			}
			if _, err := again.Usage(); err != nil && !errors.Is(err, ErrNoUsage) {
				t.Errorf("Usage() of the new one: %v", err)
			}
		})
	}
}

// identities lists the hierarchies of this machine in which cgroups can be made.
func identities(t *testing.T, h *Host) (all []sample.Hierarchy) {
	if h.Layout().Unified != "" {
		all = append(all, sample.Unified)
	}
	if _, ok := h.Layout().V1["cpu"]; ok {
		all = append(all, sample.V1CPU)
	}
	if len(all) == 0 {
		quelltest.Skip(t, "cgroups", errors.New("none mounted"))
	}
	return all
}

func TestMembersThreadsAndBelowGoDown(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	for _, hier := range identities(t, h) {
		t.Run(hier.String(), func(t *testing.T) {
			p := mkcgroup(t, h, treeOf(hier), "members")
			inner := mkcgroup(t, h, treeOf(hier), p+"/inner")
			innermost := mkcgroup(t, h, treeOf(hier), inner+"/most")
			c := open(t, h, hier, p)
			a, b := child(t, "wait"), child(t, "wait")
			move(t, h, treeOf(hier), innermost, a)
			move(t, h, treeOf(hier), p, b)
			want := []int{a, b}
			slices.Sort(want)
			got, err := c.Members()
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("Members() = %v, %v; want %v", got, err, want)
			}
			quelltest.Until(t, "all threads are counted", func() bool {
				tasks := 0
				for _, pid := range want {
					entries, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
					tasks += len(entries)
				}
				got, err := c.Threads()
				return err == nil && got == tasks && tasks > 2
			})
			var ids []uint64
			for _, q := range []string{inner, innermost} {
				inode, err := h.Inode(path.Join(h.trees[treeOf(hier)].dir, q))
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, sample.CgroupID(hier, inode))
			}
			if got, err := c.Below(); err != nil || !slices.Equal(got, ids) {
				t.Errorf("Below() = %v, %v; want %v", got, err, ids)
			}
		})
	}
}

func TestPlacesOnHybrid(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1, quelltest.Cgroup2)
	h := real(t)
	t.Run("not known, together, split, together again", func(t *testing.T) {
		p := mkcgroup(t, h, "", "places")
		x, y := mkcgroup(t, h, "cpu", "places-x"), mkcgroup(t, h, "cpu", "places-y")
		c := open(t, h, sample.Unified, p)
		check := func(step, cpu string, split bool) {
			t.Helper()
			got, err := c.Places()
			if err != nil || got.CPU != cpu || got.Split != split || split != (got.Reason != "") || got.Unified != p {
				t.Fatalf("%s: Places() = %+v, %v", step, got, err)
			}
		}
		check("no members", "", false)
		a, b := child(t, "wait"), child(t, "wait")
		move(t, h, "", p, a)
		check("at the top", "/", false)
		move(t, h, "cpu", x, a)
		check("one", x, false)
		move(t, h, "", p, b)
		move(t, h, "cpu", y, b)
		check("apart", "", true)
		if _, err := c.Usage(); err != nil {
			t.Errorf("Usage() of a split task: %v", err)
		}
		move(t, h, "cpu", x, b)
		check("together", x, false)
	})
	t.Run("shared with a stranger", func(t *testing.T) {
		p, x := mkcgroup(t, h, "", "guest"), mkcgroup(t, h, "cpu", "shared")
		c := open(t, h, sample.Unified, p)
		mine, stranger := child(t, "wait"), child(t, "wait")
		move(t, h, "", p, mine)
		move(t, h, "cpu", x, mine)
		move(t, h, "cpu", x, stranger)
		got, err := c.Places()
		if err != nil || !got.Split || got.CPU != "" || !strings.Contains(got.Reason, strconv.Itoa(stranger)) {
			t.Errorf("Places() = %+v, %v; want a split that names %d", got, err, stranger)
		}
	})
	t.Run("a container's own cgroups", func(t *testing.T) {
		p, x := mkcgroup(t, h, "", "own"), mkcgroup(t, h, "cpu", "own-x")
		pi, xi := mkcgroup(t, h, "", p+"/inner"), mkcgroup(t, h, "cpu", x+"/inner")
		c := open(t, h, sample.Unified, p)
		a := child(t, "wait")
		move(t, h, "", pi, a)
		move(t, h, "cpu", xi, a)
		if got, err := c.Places(); err != nil || got.CPU != x || got.Split {
			t.Errorf("Places() = %+v, %v; want cpu %s", got, err, x)
		}
	})
	t.Run("threads in cgroups of their own", func(t *testing.T) {
		p, x := mkcgroup(t, h, "", "vm"), mkcgroup(t, h, "cpu", "vm-x")
		emulator, vcpu := mkcgroup(t, h, "cpu", x+"/emulator"), mkcgroup(t, h, "cpu", x+"/vcpu0")
		c := open(t, h, sample.Unified, p)
		a := child(t, "wait")
		move(t, h, "", p, a)
		move(t, h, "cpu", emulator, a)
		var tids []string
		quelltest.Until(t, "the child has threads", func() bool {
			entries, err := os.ReadDir("/proc/" + strconv.Itoa(a) + "/task")
			tids = nil
			for _, e := range entries {
				tids = append(tids, e.Name())
			}
			return err == nil && len(tids) > 1
		})
		put(t, h, "cpu", vcpu, "tasks", tids[len(tids)-1])
		if got, err := c.Places(); err != nil || got.CPU != x || got.Split {
			t.Errorf("Places() = %+v, %v; want cpu %s", got, err, x)
		}
	})
	t.Run("a v1 task's usage is where cpuacct has it", func(t *testing.T) {
		if h.trees["cpu"].dir == h.trees["cpuacct"].dir {
			quelltest.Skip(t, "cpuacct-apart", errors.New("cpu and cpuacct are one hierarchy"))
		}
		p, acct := mkcgroup(t, h, "cpu", "v1"), mkcgroup(t, h, "cpuacct", "v1-elsewhere")
		c := open(t, h, sample.V1CPU, p)
		if _, err := c.Usage(); !errors.Is(err, ErrNoUsage) {
			t.Errorf("Usage() before there is a place: %v", err)
		}
		pid := child(t, "burn")
		move(t, h, "cpu", p, pid)
		if got, err := c.Places(); err != nil || got.CPUAcct != "/" || got.CPU != p || got.Unified != "/" {
			t.Errorf("Places() = %+v, %v", got, err)
		}
		if _, err := c.Usage(); !errors.Is(err, ErrNoUsage) {
			t.Errorf("Usage() at the top of cpuacct: %v", err)
		}
		move(t, h, "cpuacct", acct, pid)
		if got, err := c.Places(); err != nil || got.CPUAcct != acct {
			t.Errorf("Places() = %+v, %v", got, err)
		}
		quelltest.Until(t, "usage is counted", func() bool {
			u, err := c.Usage()
			return err == nil && u.CPU > 0
		})
	})
}

func TestAllowedCPUsFollowsAffinity(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.TwoCPUs)
	h := real(t)
	hier := identities(t, h)[0]
	p := mkcgroup(t, h, treeOf(hier), "affinity")
	c := open(t, h, hier, p)
	check := func(want ...int) {
		t.Helper()
		for _, ask := range []bool{true, false} {
			got, err := c.allowedCPUs(ask, mostPlaced)
			if err != nil || got.String() != sample.SetOf(want...).String() {
				t.Errorf("allowedCPUs(%t) = %v, %v; want %v", ask, got, err, want)
			}
		}
	}
	if !h.sameThreads() {
		t.Error("this machine's own /proc is taken for another's")
	}
	check()
	pid := child(t, "wait")
	move(t, h, treeOf(hier), p, pid)
	pin := func(cpu int) {
		var set unix.CPUSet
		set.Set(cpu)
		// Threads created meanwhile inherit from one that is not pinned yet.
		quelltest.Until(t, "every thread is pinned", func() bool {
			entries, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
			for _, e := range entries {
				tid, _ := strconv.Atoi(e.Name())
				if err := unix.SchedSetaffinity(tid, &set); err != nil {
					return false
				}
			}
			got, err := c.AllowedCPUs()
			return err == nil && got.Len() == 1
		})
	}
	pin(1)
	check(1)
	pin(0)
	check(0)
	all, err := h.Online()
	if err != nil {
		t.Fatal(err)
	}
	// A task may start more processes than are looked at: those may run anywhere.
	for _, ask := range []bool{true, false} {
		for most, want := range []sample.Set{all, sample.SetOf(0)} {
			if got, err := c.allowedCPUs(ask, most); err != nil || got.String() != want.String() {
				t.Errorf("allowedCPUs(%t) of %d processes = %v, %v; want %v", ask, most, got, err, want)
			}
		}
	}
	// A process that may run elsewhere counts too, in any order.
	move(t, h, treeOf(hier), p, child(t, "wait"))
	check(all.Numbers()...)
}

func TestWatchSeesCgroupsComeAndGo(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	hier := identities(t, h)[0]
	tree := treeOf(hier)
	w, err := h.Watch(anywhere, ofNone)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// Other programs on this machine make cgroups too, so look only below our
	// own cgroup, which no other program touches.
	top := mkcgroup(t, h, tree, "watch")
	shows := func(p string) bool {
		t.Helper()
		changes, err := w.Changes()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(changes.Places, Place{hier, p})
	}
	if !shows(top) {
		t.Error("a new cgroup did not show")
	}
	dir := path.Join(h.trees[tree].dir, top)
	for _, step := range []struct {
		what, where string
		do          func() error
	}{
		{"mkdir in a directory that was new", "/a", func() error { return os.Mkdir(dir+"/a", 0o755) }},
		{"mkdir below that", "/a/b", func() error { return os.Mkdir(dir+"/a/b", 0o755) }},
		{"rmdir", "/a/b", func() error { return os.Remove(dir + "/a/b") }},
		{"rmdir of its parent", "/a", func() error { return os.Remove(dir + "/a") }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(); err != nil {
			t.Fatal(err)
		}
		if !shows(top + step.where) {
			t.Errorf("%s did not show", step.what)
		}
	}
	for wd, watched := range w.dirs {
		if strings.HasPrefix(watched, dir+"/") {
			t.Errorf("watch %d on %s is left", wd, watched)
		}
	}
}

func TestWalkAgreesWithItsNaiveTwin(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	for _, hier := range identities(t, h) {
		tree := treeOf(hier)
		top := mkcgroup(t, h, tree, "walk")
		for _, below := range []string{"/b", "/a", "/a/x", "/a/x/deep", "/c"} {
			mkcgroup(t, h, tree, top+below)
		}
		type cgroup struct {
			path  string
			inode uint64
		}
		var got, want []cgroup
		_, err := h.WalkAt(Place{hier, "/"}, func(p string, inode uint64) error {
			if p == top || strings.HasPrefix(p, top+"/") {
				got = append(got, cgroup{p, inode})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// The twin reads every directory regardless of its link count.
		var twin func(p string)
		twin = func(p string) {
			dir := path.Join(h.trees[tree].dir, p)
			inode, err := h.Inode(dir)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, cgroup{p, inode})
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.IsDir() {
					twin(path.Join(p, e.Name()))
				}
			}
		}
		twin(top)
		if !slices.Equal(got, want) || len(want) != 6 {
			t.Errorf("%s: Walk gives %v, want %v", hier, got, want)
		}
	}
}

func TestUsageDoesNotAllocate(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	for _, hier := range identities(t, h) {
		c := open(t, h, hier, mkcgroup(t, h, treeOf(hier), "alloc"))
		if _, err := c.Usage(); err != nil && !errors.Is(err, ErrNoUsage) {
			t.Fatal(err)
		}
		if _, err := c.Stalled("cpu"); err == nil {
			if n := testing.AllocsPerRun(100, func() { c.Stalled("cpu") }); n != 0 {
				t.Errorf("Stalled() allocates %v times", n)
			}
		}
		if n := testing.AllocsPerRun(100, func() { c.Usage() }); n != 0 {
			t.Errorf("%s: Usage allocates %v times", hier, n)
		}
	}
}

// Close ends a Wait that is under way.
func TestWaitEndsWithClose(t *testing.T) {
	w, err := real(t).Watch(anywhere, ofNone)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if err := w.Wait(); err != nil {
				ended <- err
				return
			}
		}
	}()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait: %v", err)
	}
	if err := w.Wait(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}

func TestWatchLosesNothingWhenTheQueueOverflows(t *testing.T) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWatcher(fd, anywhere, ofNone)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dir := t.TempDir()
	w.tops = []top{{sample.Unified, dir}}
	if err := w.addAll(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		quelltest.Skip(t, "inotify", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || limit > 1<<16 {
		quelltest.Skip(t, "inotify-queue", errors.New("the queue holds "+string(text)))
	}
	// Each rename makes two events; those of files are ignored, but fill the queue.
	a, b := dir+"/a", dir+"/b"
	if err := os.WriteFile(a, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range limit/2 + 1 {
		if err := os.Rename(a, b); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	}
	if err := os.MkdirAll(dir+"/late/later", 0o755); err != nil {
		t.Fatal(err)
	}
	if changes, err := w.Changes(); !changes.Lost || err != nil {
		t.Fatalf("Changes() = %+v, %v after an overflow", changes, err)
	}
	if _, ok := w.wds[dir+"/late/later"]; !ok || len(w.dirs) != 3 || len(w.wds) != 3 {
		t.Errorf("watched after an overflow: %v", w.wds)
	}
	if changes, err := w.Changes(); !changes.None() || err != nil {
		t.Errorf("Changes() = %+v, %v with nothing new", changes, err)
	}
	if err := os.Rename(dir+"/late", dir+"/moved"); err != nil {
		t.Fatal(err)
	}
	if changes, err := w.Changes(); !changes.Lost || err != nil || len(w.wds) != 3 {
		t.Errorf("Changes() = %+v, %v after a rename, watching %v", changes, err, w.wds)
	}
	if err := os.Mkdir(dir+"/moved/later/new", 0o755); err != nil {
		t.Fatal(err)
	}
	changes, err := w.Changes()
	if !slices.Contains(changes.Places, Place{sample.Unified, "/moved/later/new"}) || err != nil || w.wds[dir+"/moved/later/new"] == 0 {
		t.Errorf("Changes() = %+v, %v below what was renamed, watching %v", changes, err, w.wds)
	}
}

// After an overflow the queue still holds earlier events. A directory found by
// walking can then be reported as made when another directory has its name. The
// watch of the first must not stay: on cgroupfs it would keep the inode.
func TestWatchOfADirectoryMadeAgain(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	hier := identities(t, h)[0]
	w, err := h.Watch(anywhere, ofNone)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dir := h.Path(path.Join(h.trees[treeOf(hier)].dir, mkcgroup(t, h, treeOf(hier), "again")))
	watches := func() int {
		text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(w.fd))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "\ninotify wd:")
	}
	if err := w.add(dir); err != nil {
		t.Fatal(err)
	}
	before := watches()
	for range 3 {
		if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o755), w.add(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if got := watches(); got != before || len(w.dirs) != len(w.wds) {
		t.Errorf("%d watches, want %d as before; %d directories by watch, %d by name", got, before, len(w.dirs), len(w.wds))
	}
}
