package counter

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

const workerEnv = "QUELL_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		serveWork()
		os.Exit(0)
	}
	quelltest.Main(m)
}

// serveWork is the worker's side. It executes the commands on its standard input, and
// answers each with the CPU time that it took, in ns.
func serveWork() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		what, count, _ := strings.Cut(in.Text(), " ")
		n, _ := strconv.ParseInt(count, 10, 64)
		before := cpuTime()
		switch what {
		case "burn":
			for cpuTime()-before < n {
			}
		case "call":
			for range n {
				unix.Getppid()
			}
		}
		fmt.Println(cpuTime() - before)
	}
}

func cpuTime() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return t.Nano()
}

// worker is a process in a cgroup that works on command.
type worker struct {
	*quelltest.Child
	t testing.TB
}

// work starts a worker in the cgroup dir; env are more environment entries.
func work(t testing.TB, dir string, env ...string) *worker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), append(env, workerEnv+"=1", "GOMAXPROCS=1")...)
	w := &worker{quelltest.StartChild(t, cmd, dir), t}
	w.do("call", 1) // wait until it has started
	return w
}

// do makes the worker work and returns the CPU time that it took.
func (w *worker) do(what string, n int) time.Duration {
	w.t.Helper()
	ns, err := strconv.ParseInt(w.Ask(what, n), 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return time.Duration(ns)
}

func cgroup2(t testing.TB) string {
	t.Helper()
	return quelltest.CgroupMount(t, "")
}

// cgroup makes a cgroup for the length of the test.
func cgroup(t testing.TB, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "quell-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, dir) })
	return dir
}

// removeCgroup waits until the last process has left. A cgroup that is gone already is
// no error.
func removeCgroup(t testing.TB, dir string) {
	t.Helper()
	quelltest.Until(t, dir+" can be removed", func() bool {
		err := unix.Rmdir(dir)
		return err == nil || errors.Is(err, unix.ENOENT)
	})
}

func onlineCPUs(t testing.TB) sample.Set {
	t.Helper()
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	cpus, err := sample.ParseSet(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return cpus
}

// softGroups counts the task clock and context switches.
func softGroups(t testing.TB) (*groups, string) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware)
	g := newGroups(linux{}, onlineCPUs(t))
	g.events = []event{taskClock, {"context-switches", unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CONTEXT_SWITCHES}}
	t.Cleanup(g.closeAll)
	return g, cgroup2(t)
}

func stopGroups(t testing.TB, g *groups) total {
	t.Helper()
	var sum total
	if err := g.stop(nil, func(_ *groupTask, s total) { sum = s }); err != nil {
		t.Fatal(err)
	}
	return sum
}

const burn = 60 * time.Millisecond

// slack is a tick: on a machine with steal the task clock was measured up to 5 ms below
// the process's own clock.
const slack = 10 * time.Millisecond

// timed makes the worker work, and returns the CPU time by the worker's own clock and
// the elapsed time. The task clock is between the two on any machine: it continues
// while interrupts are served and while the hypervisor has the CPU.
func (w *worker) timed(what string, n int) (used, passed time.Duration) {
	w.t.Helper()
	began := time.Now()
	used = w.do(what, n)
	return used, time.Since(began)
}

// between reports whether ns is at least the worker's own CPU time in the window and at
// most the elapsed time, within 5 % and a tick.
func between(ns float64, least, most time.Duration) bool {
	return ns >= 0.95*float64(least)-float64(slack) && ns <= 1.05*float64(most)+float64(slack)
}

func TestCgroupCounting(t *testing.T) {
	g, root := softGroups(t)
	dir := cgroup(t, root)
	in, out := work(t, dir), work(t, cgroup(t, root))
	if err := g.add(key(1), dir); err != nil {
		t.Fatal(err)
	}
	in.do("burn", int(burn)) // before the window
	if err := g.start(); err != nil {
		t.Fatal(err)
	}
	used, passed := in.timed("burn", int(burn))
	out.do("burn", int(burn))
	sum := stopGroups(t, g)
	if !between(sum.value[0], used, passed) {
		t.Errorf("task clock %v, want the %v to %v of the one in the cgroup in the window", time.Duration(sum.value[0]), used, passed)
	}
	if sum.value[1] < 1 {
		t.Errorf("%v context switches of a worker that has waited", sum.value[1])
	}
	if sum.coverage() != 1 || sum.partial {
		t.Errorf("coverage %v, partial %v: software events are always counted", sum.coverage(), sum.partial)
	}
	if !between(float64(sum.enabled), used, passed) {
		t.Errorf("enabled for %v, want the %v to %v that the cgroup ran", time.Duration(sum.enabled), used, passed)
	}

	in.do("burn", int(burn)) // between windows
	if err := g.start(); err != nil {
		t.Fatal(err)
	}
	if sum := stopGroups(t, g); sum.value[0] > float64(burn)/2 {
		t.Errorf("task clock %v in a window without work", time.Duration(sum.value[0]))
	}
}

func TestWindowAllocatesNothing(t *testing.T) {
	g, root := softGroups(t)
	if err := g.add(key(1), cgroup(t, root)); err != nil {
		t.Fatal(err)
	}
	yield := func(*groupTask, total) {}
	if n := testing.AllocsPerRun(20, func() {
		if g.start() != nil || g.stop(nil, yield) != nil {
			t.Error("start or stop failed")
		}
	}); n != 0 {
		t.Errorf("%v allocations a window", n)
	}
}

// TestDyingCgroup removes a cgroup in a window: its last difference is still read, and
// nothing holds it afterwards.
func TestDyingCgroup(t *testing.T) {
	g, root := softGroups(t)
	parent := cgroup(t, root)
	dir := filepath.Join(parent, "quell-test-child")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, dir) })
	w := work(t, dir)
	if err := g.add(key(1), dir); err != nil {
		t.Fatal(err)
	}
	if err := g.start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	used := w.do("burn", int(burn))
	w.End()
	passed := time.Since(began)
	removeCgroup(t, dir)
	dying := func() string {
		text, err := os.ReadFile(parent + "/cgroup.stat")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "nr_dying_descendants ")
		n, _, _ := strings.Cut(rest, "\n")
		return n
	}
	if n := dying(); n != "1" {
		t.Errorf("nr_dying_descendants %q while counters are open, want 1", n)
	}
	sum, ok := g.remove(key(1))
	if !ok || !between(sum.value[0], used, passed) {
		t.Errorf("task clock %v %v, want the last %v to %v", time.Duration(sum.value[0]), ok, used, passed)
	}
	quelltest.Until(t, "nr_dying_descendants is 0", func() bool { return dying() == "0" })
	if err := g.stop(nil, func(*groupTask, total) { t.Error("a reading of a removed task") }); err != nil {
		t.Error(err)
	}
}

func TestAddAfterRmdir(t *testing.T) {
	g, root := softGroups(t)
	dir := cgroup(t, root)
	at, err := openCgroup(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.close()
	removeCgroup(t, dir)
	var c cpuGroup
	err = g.open(&c, at.fd, g.cpus[0])
	if !errors.Is(err, unix.ENOENT) {
		t.Fatalf("open in a removed cgroup: %v, want ENOENT", err)
	}
	if err := g.explain("event group", at, err); unsupported(err) {
		t.Errorf("explained as %v, want a cgroup that is gone", err)
	}
}

func TestCPS(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.Tracepoints)
	root := cgroup2(t)
	p, err := OpenCPS(onlineCPUs(t), root)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dir := cgroup(t, root)
	w, other := work(t, dir), work(t, cgroup(t, root))
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	const calls = 200_000
	w.do("call", calls)
	start(t, p)
	used, passed := w.timed("call", calls)
	other.do("call", calls)
	r := stopped(t, p, nil)[key(1)]
	n, ok := r.Extras.Get(sample.Syscalls)
	// The runtime makes system calls of its own as well.
	if most := 1.02*calls + 1e4*passed.Seconds(); !ok || n < calls || n > most {
		t.Errorf("%v calls %v, want %d to %.0f", n, ok, calls, most)
	}
	if !between(r.Cost*n*1e9, used, passed) {
		t.Errorf("cost %v s/call, want %v to %v", r.Cost, used/calls, passed/calls)
	}
	if r.Coverage != 1 || p.Info().Signal != sample.CPS || p.Info().Variant != "sys-enter" {
		t.Errorf("coverage %v of %s %s", r.Coverage, p.Info().Signal, p.Info().Variant)
	}
}

// TestCPTHere finds the progress file of a real process by its environment.
func TestCPTHere(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2)
	file := t.TempDir() + "/progress"
	write := func(done uint64) {
		if err := os.WriteFile(file, binary.LittleEndian.AppendUint64(nil, done), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(1000)
	w := work(t, cgroup(t, cgroup2(t)), progressEnv+"="+file)
	c := still(t, "/proc", nil)
	members := func() ([]int, error) { return []int{os.Getpid(), w.PID}, nil }
	var used time.Duration
	if err := c.Add(Target{Key: key(1), Members: members, CPUTime: func() (time.Duration, error) { return used, nil }}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time the processes are known
		write(1000)
		c.begin(t)
		before := used
		used += w.do("burn", int(burn/4))
		write(1100)
		r := c.end(t, twoSeconds)[key(1)]
		if done, _ := r.Extras.Get(sample.Transactions); !same(r.Cost, (used-before).Seconds()/100) || done <= 0 {
			t.Errorf("cost %v of %v, want %v for each of 100", r.Cost, done, (used-before)/100)
		}
	}
}

// TestTracepointDetached finds the same number through a detached mount.
func TestTracepointDetached(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Tracepoints)
	mounts := func() (tracefs []string) { // other mounts may come and go
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, " - tracefs ") {
				tracefs = append(tracefs, line)
			}
		}
		return tracefs
	}
	before := mounts()
	root, err := detachedTracefs()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, "events/raw_syscalls/sys_enter/id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	detached, err := readTracepoint("raw_syscalls/sys_enter", os.NewFile(uintptr(fd), "id"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := tracepoint("raw_syscalls/sys_enter")
	if err != nil || e != detached || e.config == 0 {
		t.Errorf("tracepoint %+v, %v; detached %+v", e, err, detached)
	}
	if after := mounts(); !slices.Equal(after, before) {
		t.Errorf("tracefs is mounted at %q, was at %q", after, before)
	}
	if _, err := tracepoint("raw_syscalls/none"); !unsupported(err) {
		t.Errorf("a tracepoint that does not exist: %v", err)
	}
}

func TestCapabilities(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware)
	pmu := quelltest.Probe(quelltest.PMU) == nil
	for _, c := range Capabilities(cgroup2(t), onlineCPUs(t)) {
		if c.OK == (c.Reason != "") {
			t.Errorf("%s: ok %v with reason %q", c.Name, c.OK, c.Reason)
		}
		switch c.Name {
		case "perf cgroup mode":
			if !c.OK {
				t.Errorf("%s: %s", c.Name, c.Reason)
			}
		case "perf core-cycles":
			if c.OK != pmu {
				t.Errorf("%s: %v, but the PMU is there: %v", c.Name, c.OK, pmu)
			}
		}
	}
	for _, c := range Capabilities("", onlineCPUs(t)) {
		if strings.HasPrefix(c.Name, "perf ") && (c.OK || c.Remedy == "") {
			t.Errorf("without cgroup2: %+v", c)
		}
	}
}
