package counter

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func affinity(t testing.TB) unix.CPUSet {
	t.Helper()
	var s unix.CPUSet
	if err := unix.SchedGetaffinity(0, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// A tour visits each of its CPUs in turn and ends with the CPUs it began with. For a CPU that
// does not exist the thread stays where it is.
func TestTour(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := affinity(t)
	r := cpuMover{patience: time.Hour} // on a busy machine a tour may take longer than patience
	r.begin(leastVisit)
	for _, cpu := range onlineCPUs(t).Numbers() {
		if r.moveTo(cpu); !home.IsSet(cpu) {
			continue
		}
		if at := affinity(t); at.Count() != 1 || !at.IsSet(cpu) {
			t.Errorf("visiting CPU %d the thread may run on %v", cpu, at)
		}
	}
	before := affinity(t)
	r.moveTo(1000)
	if affinity(t) != before {
		t.Error("a CPU that is not there moved the thread")
	}
	r.end()
	if affinity(t) != home {
		t.Errorf("after the tour the thread may run on %v, want %v", affinity(t), home)
	}
	r.begin(leastVisit - 1)
	r.moveTo(onlineCPUs(t).Numbers()[0])
	if affinity(t) != home {
		t.Error("a tour for next to nothing moved the thread")
	}
	r.end()
}

// A thread that was given some CPUs does not leave them, except to measure.
func TestTourStaysAtHome(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := affinity(t)
	defer setAffinity(0, &before)
	cpus := slices.DeleteFunc(onlineCPUs(t).Numbers(), func(cpu int) bool { return !before.IsSet(cpu) })
	var home unix.CPUSet
	home.Set(cpus[0])
	setAffinity(0, &home)
	r := cpuMover{patience: time.Hour}
	r.begin(leastVisit)
	defer r.end()
	if r.moveTo(cpus[1]); affinity(t) != home {
		t.Errorf("the thread may run on %v, was given %v", affinity(t), home)
	}
	if r.visit(cpus[1]); affinity(t) == home {
		t.Errorf("to measure CPU %d the thread stayed on CPU %d", cpus[1], cpus[0])
	}
}

// A tour that is held up gets its CPUs back, and visits no further CPU.
func TestTourIsRescued(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := affinity(t)
	if home.Count() < 2 {
		quelltest.Skip(t, "two-cpus", errors.New("this process may run on one only"))
	}
	var r cpuMover
	r.begin(leastVisit)
	defer r.end()
	r.moveTo(onlineCPUs(t).Numbers()[0])
	quelltest.Until(t, "the thread has its CPUs back", func() bool { return affinity(t) == home })
	r.moveTo(onlineCPUs(t).Numbers()[0])
	if affinity(t) != home {
		t.Error("after its patience the tour went on")
	}
}

// Members count while their leader does and no longer.
func TestMembersFollowTheLeader(t *testing.T) {
	g, root := softGroups(t)
	g.events = []event{{"context-switches", unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CONTEXT_SWITCHES}, taskClock}
	dir := cgroup(t, root)
	w := work(t, dir)
	if err := g.add(key(1), dir); err != nil {
		t.Fatal(err)
	}
	for n, burning := range []bool{true, false, true} {
		w.do("burn", int(burn)) // between windows
		if err := g.start(); err != nil {
			t.Fatal(err)
		}
		if burning {
			w.do("burn", int(burn))
		}
		if got := time.Duration(stopGroups(t, g).value[1]); (got > burn/2) != burning {
			t.Errorf("window %d: the member counted %v, burning: %v", n, got, burning)
		}
	}
}

// BenchmarkToggle compares, in alternation, switching groups on and off from their CPU
// with doing so from any CPU; an operation is one of each over 50 tasks.
func BenchmarkToggle(b *testing.B) {
	g, dirs := benchGroups(b, 50)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var toured, straight time.Duration
	for b.Loop() {
		begin := host.ThreadCPU()
		g.toggle(true)
		for _, t := range g.order {
			t.counting = true
		}
		g.toggle(false)
		for _, t := range g.order {
			t.counting = false
		}
		middle := host.ThreadCPU()
		for _, on := range []bool{true, false} {
			for _, t := range g.order {
				for i := range t.cpus {
					g.switchOne(&t.cpus[i], on)
				}
			}
		}
		toured += middle - begin
		straight += host.ThreadCPU() - middle
	}
	each := float64(b.N * len(dirs) * len(g.cpus))
	b.ReportMetric(float64(toured)/each, "toured-cpu-ns/group")
	b.ReportMetric(float64(straight)/each, "straight-cpu-ns/group")
	b.ReportMetric(float64(straight)/float64(toured), "straight/toured")
}
