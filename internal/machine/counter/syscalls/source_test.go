package syscalls

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const childEnv = "QUELL_SYSCALLS_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		quelltest.Main(m)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			panic(err)
		}
		began := time.Now()
		for range n {
			unix.Getppid()
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
}

// caller starts a process in a task that makes as many calls as it is asked for, and answers how many
// ns that took.
func caller(t testing.TB, dir string) *quelltest.Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	c := quelltest.StartChild(t, cmd, dir)
	c.Ask(1)
	return c
}

func machine(t testing.TB) *host.Host {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func source(t testing.TB, tasks ...counter.Target) *Source {
	t.Helper()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	bpftest.Follow(t, s, tasks...)
	return s
}

// stop closes a window in which each task used as many seconds as used says.
func stop(t *testing.T, s *Source, used map[sample.TaskKey]time.Duration) map[sample.TaskKey]counter.Reading {
	t.Helper()
	all := map[sample.TaskKey]counter.Reading{}
	cpu := func(k sample.TaskKey) (time.Duration, bool) { d, known := used[k]; return d, known }
	if err := s.Stop(counter.WindowEnd{CPU: cpu}, func(k sample.TaskKey, r counter.Reading) { all[k] = r }); err != nil {
		t.Fatal(err)
	}
	return all
}

const (
	calls = 100_000
	more  = 500 // calls of the child's runtime, at most, in a short window
)

// mostMore is how many calls the runtimes may make in a window since then: while the child works, its
// monitor sleeps and interrupts it every 10 ms, however little CPU time the child gets.
func mostMore(since time.Time) float64 { return more + float64(time.Since(since).Milliseconds()) }

// Each task has its own calls, once; of nested tasks the outer one has neither the calls nor the CPU
// time of the inner one.
func TestCallsByTask(t *testing.T) {
	bpftest.EachHierarchy(t, func(t *testing.T, hier sample.Hierarchy) {
		h := machine(t)
		outer := bpftest.Task(t, h, hier, "outer")
		inner, idle := bpftest.Task(t, h, hier, "outer/inner"), bpftest.Task(t, h, hier, "idle")
		one, two := caller(t, outer.Dir), caller(t, inner.Dir)
		s := source(t, outer, inner, idle)
		two.Ask(calls) // before the window
		began := time.Now()
		bpftest.Start(t, s)
		one.Ask(calls)
		two.Ask(2 * calls)
		got := stop(t, s, map[sample.TaskKey]time.Duration{outer.Key: 3 * time.Second, inner.Key: time.Second, idle.Key: 0})
		most := mostMore(began)
		one.Ask(calls) // after it
		for _, want := range []struct {
			counter.Target
			calls, seconds float64
		}{{outer, calls, 2}, {inner, 2 * calls, 1}, {idle, 0, 0}} {
			r := got[want.Key]
			n := bpftest.Count(r, sample.Syscalls)
			if n < want.calls || n > want.calls+most {
				t.Errorf("%s made %v calls, counted %v", want.Dir, want.calls, n)
			}
			if cost := want.seconds / n; r.Cost != cost && !(n == 0 && math.IsNaN(r.Cost)) {
				t.Errorf("%s costs %v, want %v", want.Dir, r.Cost, cost)
			}
		}
	})
}

// A task that goes on in cgroups that it makes in an open window is counted, also after it has made and
// removed more of them than are known at once, and in one within another.
func TestAttackNewCgroups(t *testing.T) {
	bpftest.EachHierarchy(t, func(t *testing.T, hier sample.Hierarchy) {
		h := machine(t)
		task, other := bpftest.Task(t, h, hier, "task"), bpftest.Task(t, h, hier, "other")
		c := caller(t, task.Dir)
		s := source(t, task, other)
		began := time.Now()
		bpftest.Start(t, s)
		first := bpftest.Moved(t, task.Dir, "first", c)
		c.Ask(calls)
		for range bpf.MaxMade + 100 {
			dir := filepath.Join(task.Dir, "churn")
			if err := errors.Join(os.Mkdir(dir, 0o755), os.Remove(dir)); err != nil {
				t.Fatal(err)
			}
		}
		bpftest.Moved(t, bpftest.Moved(t, first, "second", c), "third", c)
		c.Ask(calls)
		got := stop(t, s, nil)
		if n := bpftest.Count(got[task.Key], sample.Syscalls); n < 2*calls || n > 2*calls+mostMore(began) {
			t.Errorf("%v calls are counted, of %v", n, 2*calls)
		}
		if n := bpftest.Count(got[other.Key], sample.Syscalls); n > 0 {
			t.Errorf("%v calls of another task", n)
		}
		if n := s.Totals().Lost; n > 0 {
			t.Errorf("lost %d", n)
		}
	})
}

// Both ways count the same calls of a task.
func TestAsPerfCounts(t *testing.T) {
	quelltest.Need(t, quelltest.PerfSoftware, quelltest.Tracepoints)
	h := machine(t)
	task := bpftest.Task(t, h, sample.Unified, "perf")
	task.PerfDir = task.Dir
	topology, err := h.Topology()
	if err != nil {
		t.Fatal(err)
	}
	p, err := counter.OpenCPS(topology.Online, h.Layout().Unified)
	if err != nil {
		t.Fatal(err)
	}
	bpftest.Follow(t, p, task)
	c, s := caller(t, task.Dir), source(t, task)
	if p.Info().Variant != s.Info().Variant {
		t.Errorf("variants %q and %q", p.Info().Variant, s.Info().Variant)
	}
	bpftest.Start(t, p)
	bpftest.Start(t, s)
	c.Ask(calls)
	mine := stop(t, s, map[sample.TaskKey]time.Duration{task.Key: time.Second})[task.Key]
	perfs := bpftest.Stop(t, p)[task.Key]
	a, b := bpftest.Count(mine, sample.Syscalls), bpftest.Count(perfs, sample.Syscalls)
	if a < calls || math.Abs(a-b) > more {
		t.Errorf("%v calls by eBPF, %v by perf", a, b)
	}
}

// The last calls of a task that ends in a window are not lost. A task with others inside it has no
// cost then.
func TestRemovedInAWindow(t *testing.T) {
	h := machine(t)
	outer, inner := bpftest.Task(t, h, sample.Unified, "outer"), bpftest.Task(t, h, sample.Unified, "outer/inner")
	one, two := caller(t, outer.Dir), caller(t, inner.Dir)
	s := source(t, outer, inner)
	for _, first := range []counter.Target{outer, inner} {
		began := time.Now()
		bpftest.Start(t, s)
		one.Ask(calls)
		two.Ask(calls)
		r, ok := s.Remove(first.Key, time.Second)
		n := bpftest.Count(r, sample.Syscalls)
		if cost := 1 / n; !ok || n < calls || n > calls+mostMore(began) || (r.Cost == cost) != (first.Key == inner.Key) {
			t.Errorf("%s: %v calls, cost %v, %v", first.Dir, n, r.Cost, ok)
		}
		stop(t, s, nil)
	}
}

// What a call costs more in a window, of a task that is followed and of one that is not, by eBPF and by
// perf.
func BenchmarkCall(b *testing.B) {
	h := machine(b)
	topology, err := h.Topology()
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []string{"eBPF", "perf"} {
		for _, follow := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/followed=%v", way, follow), func(b *testing.B) {
				task, other := bpftest.Task(b, h, sample.Unified, "task"), bpftest.Task(b, h, sample.Unified, "other")
				var s counter.Source
				if s, err = Open(); way == "perf" && err == nil {
					if err := s.Close(); err != nil {
						b.Fatal(err)
					}
					s, err = counter.OpenCPS(topology.Online, h.Layout().Unified)
				}
				if err != nil {
					b.Fatal(err)
				}
				if task.PerfDir, other.PerfDir = task.Dir, other.Dir; follow {
					other = task
				}
				bpftest.Follow(b, s, other)
				c := caller(b, task.Dir)
				bpftest.Cost(b, s, "call", nil, func() float64 {
					ns, err := strconv.Atoi(c.Ask(calls))
					if err != nil {
						b.Fatal(err)
					}
					return float64(ns) / calls
				})
			})
		}
	}
}

// TestOldestKernel: the kernel that a refusal names has all that the program calls.
func TestOldestKernel(t *testing.T) {
	spec, err := loadSyscalls()
	if err != nil {
		t.Fatal(err)
	}
	bpftest.RunOn(t, spec, oldest)
}
