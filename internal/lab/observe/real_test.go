package observe

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// boxed is a real process in its own cgroups.
type boxed struct {
	lab.Environment
	t    *testing.T
	dir  *host.Cgroup
	pid  int
	busy func(n int)
}

func (b *boxed) Usage() (lab.Usage, error) {
	u, err := b.dir.Usage()
	return lab.Usage{User: u.CPU}, err
}
func (b *boxed) Threads() ([]int, error) { return []int{b.pid}, nil }

// counts is the work of a box: a loop of n iterations.
const counts = "i=0; while [ $i -lt $n ]; do i=$((i+1)); done"

// box starts a shell on CPU 0 that does a piece of work on each command.
func box(t *testing.T, h *host.Host, tree *workload.Tree, task, does string) *boxed {
	t.Helper()
	sh := exec.Command("sh", "-c", "while read n; do "+does+"; echo done; done")
	in, err := sh.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Launch(task, sh, sample.SetOf(0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = sh.Wait() // it ends at the end of its input
	})
	hier, _ := h.Layout().CPU()
	cg, err := h.OpenCgroup(hier, tree.Path(task))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cg.Close() })
	lines := bufio.NewScanner(out)
	return &boxed{t: t, dir: cg, pid: sh.Process.Pid, busy: func(n int) {
		fmt.Fprintln(in, n)
		if !lines.Scan() {
			t.Error("the shell ended")
		}
	}}
}

func TestObservesThisMachine(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := workload.OpenTree("quell-test-observe", workload.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	fg, other := box(t, h, tree, "fg", counts), box(t, h, tree, "other", counts)
	opt := Options{Host: h, Observe: study.Observe{Sets: []string{"cpu", "psi", "schedstat", "net", "energy"}, Events: []string{"cycles", "instructions", "llc-misses", "sched:sched_switch", "no-such"}, Signals: []string{"cpi", "cps", "cpt"}},
		Run: study.Run{MaxForeignCPU: 0.001, MaxSteal: 1}}
	cell := &study.Cell{Parts: []study.Part{{Role: "fg"}}}
	o, err := opt.open(lab.Observed{Cell: cell, Names: []string{"fg"}, Envs: []lab.Environment{fg}, Start: time.Now(), Sets: [][]sample.Set{{sample.SetOf(0)}}})
	if err != nil {
		t.Fatal(err)
	}
	fg.busy(150000)
	ends := time.Duration(0) // how long the readings at the window's ends took
	window := func(open bool) {
		t.Helper()
		from := time.Now()
		if err := o.Window(open); err != nil {
			t.Fatal(err)
		}
		ends += time.Since(from)
	}
	window(true)
	before, err := fg.Usage()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	fg.busy(300000)
	passed := time.Since(began).Seconds()
	other.busy(300000) // a task outside the run
	after, err := fg.Usage()
	if err != nil {
		t.Fatal(err)
	}
	second, _ := o.Second(time.Now())
	window(false)
	fg.busy(150000)
	length := o.closed.at.Sub(o.opened.at).Seconds()
	parts := []result.Part{{Name: "fg"}}
	evidence, err := o.Close(parts)
	if err != nil {
		t.Fatal(err)
	}
	used := (after.Total() - before.Total()).Seconds()
	got := parts[0]
	// perf's clock continues while the hypervisor has the CPU, while interrupts are
	// served and during context switches: under load it was measured a third above the
	// CPU time. Work outside the window would add half.
	if clock := got.Events["task-clock"] / 1e9; clock < 0.95*used-0.01 || clock > max(1.05*passed, 1.45*used)+0.01 {
		t.Errorf("task-clock %v s, its CPU time is %v in %v s", clock, used, passed)
	}
	if got.Events["sched:sched_switch"]+got.Events["context-switches"] == 0 {
		t.Error("no context switch, though it waited for input")
	}
	if got.Missing["no-such"] == "" {
		t.Errorf("no reason for an event that there is not: %v", got.Missing)
	}
	if quelltest.Probe(quelltest.Tracepoints) == nil && (got.Events["signal.cps"] <= 0 || got.Events["signal.cps"] > used) {
		t.Errorf("signal.cps = %v s a call", got.Events["signal.cps"])
	}
	if got.Missing["signal.cpt"] == "" {
		t.Error("no reason for a signal that is not counted")
	}
	if quelltest.Probe(quelltest.PMU) == nil {
		if cpi := got.Events["cycles"] / got.Events["instructions"]; got.Events["signal.cpi"] != cpi {
			t.Errorf("signal.cpi = %v, want %v", got.Events["signal.cpi"], cpi)
		}
		if got.Events["instructions"] < 1e6 || got.Events["cycles"] < 1e6 {
			t.Errorf("%v, missing %v", got.Events, got.Missing)
		}
	} else if got.Missing["instructions"] == "" || got.Events["instructions"] != 0 {
		t.Errorf("without a PMU: %v, missing %v", got.Events, got.Missing)
	}
	for _, name := range []string{"cpu.fg", "cpu.foreign", "sched.delay.fg", "sched.switches.fg", "sched.migrations.fg", "swap.in"} {
		if _, ok := second.Values[name]; !ok {
			t.Errorf("no %s in %v", name, second.Values)
		}
	}
	if cpu := second.Values["cpu.fg"]; cpu <= 0 || cpu > 1.05 {
		t.Errorf("cpu.fg = %v", cpu)
	}
	// Foreign time is that of the other task and of anything else that ran here. Together
	// with the part's time it is at most the capacity.
	foreign := -1.0
	for _, e := range evidence {
		if e.Reason == result.ForeignCPU {
			foreign = e.Value
			t.Log(e.Text)
		}
	}
	theirs, err := other.Usage()
	if err != nil {
		t.Fatal(err)
	}
	// All within two kernel ticks of 10 ms, and what the CPU does while its busy time is read
	// before an end and after it: of their mean, half.
	slack := (0.02 + ends.Seconds()/2) / length
	if least := theirs.Total().Seconds()*0.5/length - slack; foreign < least || foreign+used/length > 1.05+slack {
		t.Errorf("foreign %v with a part of %v, and another of at least %v, within %v", foreign, used/length, least, slack)
	}
	t.Logf("%v\n%v\nmissing %v", second.Values, got.Events, got.Missing)
}

// The cost of a part's disk requests is counted in the steady window, for that part only.
// A part that makes no requests has no such signal, and a reason.
func TestObservesRequestsToADisk(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.EBPF)
	dir, err := os.MkdirTemp(".", "observe-test-") // not in memory, as /tmp may be
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.OVERLAYFS_SUPER_MAGIC) {
		quelltest.Skip(t, "disk", fmt.Errorf("%s is on no disk of its own", dir))
	}
	file := filepath.Join(dir, "data")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(make([]byte, 100*4096))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := workload.OpenTree("quell-test-observe-io", workload.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	reads := "dd if=" + file + " of=/dev/null bs=4096 count=$n iflag=direct 2>/dev/null"
	envs := []lab.Environment{box(t, h, tree, "reader", reads), box(t, h, tree, "idle", counts)}
	opt := Options{Host: h, Observe: study.Observe{Signals: []string{"io"}}, Run: study.Run{MaxForeignCPU: 1, MaxSteal: 1}}
	cpu := []sample.Set{sample.SetOf(0)}
	o, err := opt.open(lab.Observed{Cell: &study.Cell{}, Names: []string{"reader", "idle"}, Envs: envs, Start: time.Now(), Sets: [][]sample.Set{cpu, cpu}})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Window(true); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	envs[0].(*boxed).busy(100)
	took := time.Since(began).Seconds()
	if err := o.Window(false); err != nil {
		t.Fatal(err)
	}
	parts := []result.Part{{Name: "reader"}, {Name: "idle"}}
	if _, err := o.Close(parts); err != nil {
		t.Fatal(err)
	}
	if cost := parts[0].Events["signal.io"]; !(cost > 0 && cost < took/100) {
		t.Errorf("a read took %v s of %v s for 100; missing %v", cost, took, parts[0].Missing)
	}
	if why := parts[1].Missing["signal.io"]; why == "" || parts[1].Events["signal.io"] != 0 {
		t.Errorf("part without reads: %v, missing %q", parts[1].Events["signal.io"], why)
	}
}

// A part's cgroup is found from its threads; the lab's own cgroup does not count.
func TestCgroupOfAPart(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := workload.OpenTree("quell-test-observe", workload.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	a, b := box(t, h, tree, "x/a", counts), box(t, h, tree, "x/b", counts)
	unified := h.Layout().Unified
	for _, test := range []struct {
		threads []int
		want    string
	}{
		{[]int{a.pid}, filepath.Join(unified, tree.Path("x/a"))},
		{[]int{a.pid, b.pid}, filepath.Join(unified, tree.Path("x"))},
		{[]int{a.pid, 1 << 22}, filepath.Join(unified, tree.Path("x/a"))},
		{nil, ""},
	} {
		if got := cgroups(h, test.threads)[""]; got != test.want {
			t.Errorf("%v: %q, want %q", test.threads, got, test.want)
		}
	}
	p := &part{host: h, dirs: cgroups(h, []int{a.pid}), env: a}
	if !p.holds(a.pid, pathsOf(h, fmt.Sprint(a.pid))) || p.holds(b.pid, pathsOf(h, fmt.Sprint(b.pid))) {
		t.Error("a part holds its own processes and no others")
	}
}
