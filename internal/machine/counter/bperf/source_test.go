package bperf

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const childEnv = "QUELL_BPERF_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		run := child
		if what != "1" {
			run = func() error { return pass(what == "ping") }
		}
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	quelltest.Main(m)
}

// child touches as many new pages as a line of its input says: each is a page fault. For "burn"
// it computes until its input ends.
func child() error {
	page := os.Getpagesize()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "burn" {
			fmt.Println("burning")
			go func() {
				for n := uint64(1); n != 0; n += 2 { // it burns: n stays odd
				}
			}()
			continue
		}
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		m, err := unix.Mmap(-1, 0, n*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // not every kernel has huge pages
		for i := range n {
			m[i*page] = 1
		}
		if err := unix.Munmap(m); err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

// start runs a child in the cgroup of a directory, on one CPU. The child inherits that, so that each of
// its threads has it, whenever the runtime starts it.
func start(t testing.TB, dir string, cpu int) *quelltest.Child {
	t.Helper()
	cmd := exec.Command("taskset", "-c", strconv.Itoa(cpu), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", "GOMAXPROCS=2")
	c := quelltest.StartChild(t, cmd, dir)
	c.Ask(1) // it is there, and in its cgroup
	return c
}

// pin moves all threads of a process to a CPU.
func pin(t testing.TB, pid, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range threads {
		tid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			t.Fatal(err)
		}
	}
}

// events are counted by any machine: the time in which a CPU is there, in the place of cycles,
// and page faults, in that of instructions.
func events(t testing.TB) []counter.Event {
	t.Helper()
	var all []counter.Event
	for _, name := range []string{"task-clock", "page-faults"} {
		e, err := counter.LookupEvent(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func topology(t testing.TB) (*host.Host, host.Topology) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	topo, err := h.Topology()
	if err != nil {
		t.Fatal(err)
	}
	return h, topo
}

func open(t testing.TB, online sample.Set, tasks ...counter.Target) *Source {
	t.Helper()
	s, err := Open(events(t), counter.Info{Signal: sample.CPI, Variant: "core-cycles"}, online)
	if err != nil {
		t.Fatal(err)
	}
	bpftest.Follow(t, s, tasks...)
	return s
}

// faults is what the events(t) of a reading count.
func faults(r counter.Reading) float64  { return bpftest.Count(r, sample.Instructions) }
func seconds(r counter.Reading) float64 { return bpftest.Count(r, sample.Cycles) / 1e9 }

// own is more page faults than a child has in addition to those that it is asked for: its
// runtime's.
const own = 100

// part reports whether slices of the reading are missing since this kernel hid switches from the
// program: it does so under load, and then says nothing. Such a reading has a lower coverage, and
// no counts.
func part(t *testing.T, s *Source, r counter.Reading) bool {
	t.Helper()
	if r.Coverage == 1 || s.programs.Lost() == 0 {
		return false
	}
	t.Logf("%d slices were missed, coverage %.3f", s.programs.Lost(), r.Coverage)
	return true
}

func wantFaults(t *testing.T, s *Source, what string, r counter.Reading, want float64) {
	t.Helper()
	if part(t, s, r) {
		return
	}
	if got := faults(r); got < want || got > want+own {
		t.Errorf("%s: %v page faults, want %v and a few: %+v", what, got, want, r)
	}
	if r.Coverage != 1 || r.Reach != nil {
		t.Errorf("%s: coverage %v, reach %v", what, r.Coverage, r.Reach)
	}
}

// TestEachTaskHasItsOwn: what threads of several cgroups do on one CPU goes to the cgroup of
// each, in v2 and v1, and is what perf counts in cgroup mode.
func TestEachTaskHasItsOwn(t *testing.T) {
	h, topo := topology(t)
	bpftest.EachHierarchy(t, func(t *testing.T, hier sample.Hierarchy) {
		one, other := bpftest.Task(t, h, hier, "one"), bpftest.Task(t, h, hier, "other")
		a, b, outside := start(t, one.Dir, 0), start(t, other.Dir, 0), start(t, "", 0)
		s := open(t, topo.Online, one, other)
		perf := func() float64 { return 0 }
		if hier == sample.Unified && quelltest.Probe(quelltest.PerfSoftware) == nil {
			c, err := events(t)[1].OpenCgroup(one.Dir, topo.Online)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Toggle(true); err != nil {
				t.Fatal(err)
			}
			perf = func() float64 {
				n, _, err := c.Read()
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		for range 2 { // windows
			before := perf()
			bpftest.Start(t, s)
			for range 10 {
				a.Ask(1000)
				b.Ask(300)
				outside.Ask(500)
			}
			got := bpftest.Stop(t, s)
			counted := perf()
			wantFaults(t, s, "one", got[one.Key], 10_000)
			wantFaults(t, s, "other", got[other.Key], 3_000)
			// perf's window is a little longer.
			if hier == sample.Unified && counted > 0 && !part(t, s, got[one.Key]) && (faults(got[one.Key]) > counted || faults(got[one.Key]) < counted-own) {
				t.Errorf("%v faults, perf counted %v to %v", faults(got[one.Key]), before, counted)
			}
			if o := s.Totals().Others; o.Extras.Len() > 0 || o.Coverage != 0 {
				t.Errorf("others %+v", o)
			}
		}
		a.Ask(1000) // between windows
		bpftest.Start(t, s)
		if got := bpftest.Stop(t, s); faults(got[one.Key]) > own {
			t.Errorf("%v faults in a window without any", faults(got[one.Key]))
		}
	})
}

// TestMoves: a task's threads change their CPU in the window, and a cgroup below it is the
// task's.
func TestMoves(t *testing.T) {
	h, topo := topology(t)
	quelltest.Need(t, quelltest.TwoCPUs)
	task := bpftest.Task(t, h, sample.Unified, "moves")
	below := quelltest.MakeCgroup(t, filepath.Join(task.Dir, "below"))
	a := start(t, below, 0)
	s := open(t, topo.Online, task)
	bpftest.Start(t, s)
	for i := range 20 {
		pin(t, a.PID, i%2)
		a.Ask(500)
	}
	wantFaults(t, s, "moves", bpftest.Stop(t, s)[task.Key], 10_000)
}

// TestRunningThreads: a thread that runs at both edges of the window is charged with all of it.
func TestRunningThreads(t *testing.T) {
	h, topo := topology(t)
	task := bpftest.Task(t, h, sample.Unified, "burns")
	a := start(t, task.Dir, topo.Online.Numbers()[0])
	a.Ask("burn")
	s := open(t, topo.Online, task)
	used := func() time.Duration { // exact, unlike the cgroup's (clock_getcpuclockid(3))
		var ts unix.Timespec
		if err := unix.ClockGettime(int32(^a.PID<<3|2), &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	outer, began := used(), host.Monotonic()
	bpftest.Start(t, s)
	inner := used()
	quelltest.Until(t, "it has run for a while", func() bool { return used()-inner > 100*time.Millisecond })
	least := (used() - inner).Seconds()
	got := bpftest.Stop(t, s)[task.Key]
	most, wall := (used() - outer).Seconds(), time.Duration(host.Monotonic()-began).Seconds()
	// Interrupts and steal are in the count and not in the CPU time.
	if n := seconds(got); !part(t, s, got) && (n < 0.99*least || n > max(most, wall)+0.001) {
		t.Errorf("%v s were counted, it ran for %v to %v of %v", n, least, most, wall)
	}
	// A task that is removed while it runs.
	bpftest.Start(t, s)
	inner = used()
	quelltest.Until(t, "it has run for a while", func() bool { return used()-inner > 50*time.Millisecond })
	least = (used() - inner).Seconds()
	r, ok := s.Remove(task.Key, 0)
	if n := seconds(r); !ok || !part(t, s, r) && n < 0.99*least {
		t.Errorf("removed: %v s were counted, it ran for %v", n, least)
	}
	bpftest.Stop(t, s)
}

// TestEnds: a task whose processes end in the window, and whose cgroup is gone, is counted.
func TestEnds(t *testing.T) {
	h, topo := topology(t)
	task, other := bpftest.Task(t, h, sample.Unified, "ends"), bpftest.Task(t, h, sample.Unified, "other")
	s := open(t, topo.Online, task, other)
	a := start(t, task.Dir, 0)
	bpftest.Start(t, s)
	a.Ask(5000)
	a.End()
	quelltest.Until(t, "its cgroup can be removed", func() bool { return unix.Rmdir(task.Dir) == nil })
	r, ok := s.Remove(task.Key, 0)
	if !ok {
		t.Fatal("no reading")
	}
	if got := faults(r); !part(t, s, r) && (got < 5000 || got > 5000+5*own) { // its end is in the window too
		t.Errorf("%v page faults, want 5000 and a few", got)
	}
	charged := s.programs.charged
	if s.Remove(other.Key, 0); s.programs.charged != charged && time.Since(charged) < 10*time.Millisecond {
		t.Error("all CPUs are interrupted for each of the tasks that end at once")
	}
	if got := bpftest.Stop(t, s); len(got) != 0 {
		t.Errorf("readings %v of a removed task", got)
	}
}

// TestCPUsComeAndGo: on a CPU without counters nothing is counted, and the reading has no cost;
// when the CPU is there again it is.
func TestCPUsComeAndGo(t *testing.T) {
	h, topo := topology(t)
	quelltest.Need(t, quelltest.TwoCPUs)
	task := bpftest.Task(t, h, sample.Unified, "cpus")
	a := start(t, task.Dir, 1)
	s := open(t, topo.Online, task)
	for i, online := range []sample.Set{topo.Online, sample.SetOf(0), topo.Online} {
		s.SetCPUs(online)
		lost := s.Totals().Lost
		bpftest.Start(t, s)
		a.Ask(5000)
		r := bpftest.Stop(t, s)[task.Key]
		if i == 1 {
			if !math.IsNaN(r.Cost) || r.Extras.Len() > 0 || r.Coverage >= 0.5 || s.Totals().Lost == lost {
				t.Errorf("on a CPU without counters: %+v, %d lost", r, s.Totals().Lost-lost)
			}
			continue
		}
		if r.Coverage != 1 && s.Totals().Lost == lost {
			t.Errorf("window %d: coverage %v, nothing lost", i, r.Coverage)
		}
		wantFaults(t, s, fmt.Sprintf("window %d", i), r, 5000)
	}
}

// TestInfo: descriptors do not grow with tasks, the variant is that of cgroup mode, and the
// overhead of a switch is measured.
func TestInfo(t *testing.T) {
	h, topo := topology(t)
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	s := open(t, topo.Online)
	before := count()
	for i := range 50 {
		if err := s.Add(bpftest.Task(t, h, sample.Unified, fmt.Sprint("many-", i))); err != nil {
			t.Fatal(err)
		}
	}
	tasks := 50 // each is held open by the test itself
	bpftest.Start(t, s)
	got := bpftest.Stop(t, s)
	if now := count(); now > before+tasks {
		t.Errorf("%d descriptors for 50 tasks more", now-before-tasks)
	}
	for _, r := range got {
		if !math.IsNaN(r.Cost) || r.Coverage != 1 || faults(r) != 0 || r.Extras.Len() != 2 {
			t.Errorf("a task without threads: %+v", r)
		}
	}
	i := s.Info()
	if len(got) != 50 || i.Variant != "core-cycles" || i.WindowFDs != 0 || i.IdleFDs != 0 || i.SwitchOverhead <= 0 || i.SwitchOverhead > 10*time.Millisecond {
		t.Errorf("%d readings, info %+v", len(got), i)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err == nil || !strings.Contains(err.Error(), "window") {
		t.Errorf("a second window: %v", err)
	}
	bpftest.Stop(t, s)
}

// TestOldestKernel: the kernel that a refusal names has all that the programs call.
func TestOldestKernel(t *testing.T) {
	spec, err := loadBperf()
	if err != nil {
		t.Fatal(err)
	}
	bpftest.RunOn(t, spec, oldest)
}

// TestReading: counts are scaled by the time with counters, and what was missed lowers the
// coverage.
func TestReading(t *testing.T) {
	for _, c := range []struct {
		name     string
		done     bperfDone
		cost     float64 // NaN for none
		coverage float64
		extras   int
		cycles   float64
	}{
		{"two events", bperfDone{Value: [3]uint64{300, 100}, Enabled: 10, Running: 10, Slices: 4, Events: 2}, 3, 1, 2, 300},
		{"three events", bperfDone{Value: [3]uint64{300, 100, 7}, Enabled: 10, Running: 10, Slices: 4, Events: 3}, 3, 1, 3, 300},
		{"multiplexed", bperfDone{Value: [3]uint64{300, 100, 7}, Enabled: 10, Running: 8, Slices: 4, Events: 3}, 3, 0.8, 3, 375},
		{"too seldom", bperfDone{Value: [3]uint64{300, 100, 7}, Enabled: 10, Running: 4, Slices: 4, Events: 3}, math.NaN(), 0.4, 0, 0},
		{"a part missed", bperfDone{Value: [3]uint64{300, 100}, Enabled: 10, Running: 10, Slices: 3, Missed: 1, Events: 2}, 3, 0.75, 0, 0},
		{"all missed", bperfDone{Missed: 3}, math.NaN(), 0, 0, 0},
		{"idle", bperfDone{}, math.NaN(), 1, 2, 0},
		{"standing still", bperfDone{Enabled: 10, Running: 10, Slices: 4, Events: 3}, math.NaN(), 1, 3, 0},
	} {
		r := c.done.Reading()
		if short := c.name == "too seldom" || c.name == "standing still"; (r.Err == counter.ErrNoCounters) != short {
			t.Errorf("%s: %v", c.name, r.Err)
		}
		if r.Cost != c.cost && !(math.IsNaN(r.Cost) && math.IsNaN(c.cost)) || r.Coverage != c.coverage || r.Extras.Len() != c.extras || bpftest.Count(r, sample.Cycles) != c.cycles {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	var sum bperfDone
	sum.Add(&bperfDone{Value: [3]uint64{1, 2, 3}, Enabled: 4, Running: 5, Slices: 6, Missed: 7, Events: 2})
	sum.Add(&bperfDone{Value: [3]uint64{1, 2, 3}, Enabled: 4, Running: 5, Slices: 6, Missed: 7, Events: 3})
	if sum != (bperfDone{Value: [3]uint64{2, 4, 6}, Enabled: 8, Running: 10, Slices: 12, Missed: 14, Events: 3}) {
		t.Errorf("sum %+v", sum)
	}
}
