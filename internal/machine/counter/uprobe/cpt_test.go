package uprobe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// cgroup makes a cgroup in the hierarchy; it is removed at the test's end.
func cgroup(t *testing.T, h sample.Hierarchy, name string) *host.Cgroup {
	t.Helper()
	machine, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	root := machine.Layout().Unified
	if h == sample.V1CPU {
		root = machine.Layout().V1["cpu"]
	}
	if root == "" {
		quelltest.Skip(t, quelltest.CgroupV1, errors.New("no such hierarchy"))
	}
	path := fmt.Sprintf("/quell-test-uprobe-%d-%s", os.Getpid(), name)
	dir := filepath.Join(root, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		quelltest.Until(t, "rmdir "+dir, func() bool { return os.Remove(dir) == nil })
	})
	cg, err := machine.OpenCgroup(h, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cg.Close() })
	return cg
}

func target(cg *host.Cgroup, h sample.Hierarchy, binary string, rate float64) counter.Target {
	return counter.Target{Key: sample.TaskKey{Hierarchy: h, Inode: cg.Inode(), FirstSeen: 1}, Dir: cg.Dir(), Members: cg.Members, Below: cg.Below,
		Uprobe: &counter.Uprobe{Binary: binary, Symbol: "hit", MaxRate: rate}}
}

func openCPT(t *testing.T, targets ...counter.Target) *counter.CPT {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	c, err := counter.OpenCPT("/proc", Prober{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, target := range targets {
		if err := c.Add(target); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func stop(t *testing.T, c *counter.CPT) map[sample.TaskKey]counter.Reading {
	t.Helper()
	all := map[sample.TaskKey]counter.Reading{}
	second := func(sample.TaskKey) (time.Duration, bool) { return time.Second, true }
	if err := c.Stop(counter.WindowEnd{CPU: second}, func(k sample.TaskKey, r counter.Reading) { all[k] = r }); err != nil {
		t.Fatal(err)
	}
	return all
}

// notYet lists the reasons for which a window had no breakpoint in time.
var notYet = []string{"uprobe: not attached yet", "uprobe: still being removed after the previous window"}

// late reports whether attaching took more than half of the window: the window knows
// that the kernel has the breakpoint only when its goroutine runs again.
func late(r counter.Reading) bool {
	return r.Coverage > 0 && r.Coverage < 0.5 || r.Err != nil && slices.Contains(notYet, r.Err.Error())
}

// attachedNow counts the breakpoints that this process holds.
func attachedNow(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(to, "perf_event") {
			n++
		}
	}
	return n
}

// Two tasks run the same program, one known by its cgroup2 and one by its v1 cgroup. In
// the first, processes start and end. A third process is outside of both.
func TestTasksOfOneProgram(t *testing.T) {
	binary := buildC(t)
	unified, v1 := cgroup(t, sample.Unified, "unified"), cgroup(t, sample.V1CPU, "v1")
	one, two := target(unified, sample.Unified, binary, 1e6), target(v1, sample.V1CPU, binary, 1e6)
	c := openCPT(t, one, two)
	a, b, outside := run(t, binary, unified.Dir()), run(t, binary, v1.Dir()), run(t, binary, "")
	outer := time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	inner := time.Now()
	quelltest.Until(t, "the probe is attached", func() bool { return attachedNow(t) > 0 })
	outside.hit(100_000, 1)
	a.hit(20, 10) // nine of the processes are gone at the window's end
	b.hit(30, 1)
	least := time.Since(inner)
	all := stop(t, c)
	most := time.Since(outer)
	for task, want := range map[sample.TaskKey]float64{one.Key: 200, two.Key: 30} {
		r := all[task]
		tx, _ := r.Extras.Get(sample.Transactions)
		// Scaled from the time that the probe was there to the window's. On a busy
		// machine attaching takes more than half of such a short window, or the
		// probe is read so long after the window's end that it was there for longer.
		scale := 1.0
		if r.Coverage == 1 {
			scale = least.Seconds() / most.Seconds()
		}
		if counted := tx * r.Coverage; r.Err != nil && !late(r) || r.Err == nil && (counted < want*scale*0.999 || counted > want*1.001) {
			t.Errorf("%v: %+v: %v transactions, want %v", task.Hierarchy, r, tx*r.Coverage, want)
		}
	}
	quelltest.Until(t, "nothing is attached between windows", func() bool { return attachedNow(t) == 0 })
}

// A function that is called all the time is given up long before the window's end, and
// the program continues at its own speed.
func TestBusyFunctionIsLeftAlone(t *testing.T) {
	binary := buildC(t)
	cg := cgroup(t, sample.Unified, "busy")
	task := target(cg, sample.Unified, binary, 100)
	c := openCPT(t, task)
	p := run(t, binary, cg.Dir())
	var r counter.Reading
	for again := true; again; again = late(r) {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		quelltest.Until(t, "the probe is attached", func() bool { return attachedNow(t) > 0 })
		done := make(chan bool)
		go func() { p.hit(30_000_000, 1); close(done) }() // 60 s of hits, 0.1 s without
		quelltest.Until(t, "the probe is taken out", func() bool { return attachedNow(t) == 0 })
		<-done
		r = stop(t, c)[task.Key]
	}
	var rate *counter.RateError
	if !errors.As(r.Err, &rate) || rate.Rate < 100 {
		t.Errorf("%+v", r)
	}
	t.Log(rate)
}

// A container has files of its own: the path is the one that the task sees.
func TestProgramInAnotherRoot(t *testing.T) {
	binary := buildC(t, "-static")
	root := filepath.Dir(binary)
	cg := cgroup(t, sample.Unified, "root")
	task := target(cg, sample.Unified, "/program", 1e6)
	c := openCPT(t, task)
	p := run(t, binary, cg.Dir(), func(attr *syscall.SysProcAttr) { attr.Chroot = root })
	length := time.Millisecond // of the window, twice as long each time
	quelltest.Until(t, "a window is counted", func() bool {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(length); time.Now().Before(end); {
			p.hit(50, 1)
		}
		length *= 2
		r := stop(t, c)[task.Key]
		if r.Err == nil && r.Variant != "uprobe" || r.Err != nil && !late(r) {
			t.Fatalf("%+v", r)
		}
		return r.Err == nil
	})
}
