package counter

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

// benchGroups is a set of groups over many idle cgroups.
func benchGroups(b *testing.B, tasks int) (*groups, []string) {
	g, root := softGroups(b)
	g.events = append(g.events, event{"cpu-migrations", unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_MIGRATIONS})
	var dirs []string
	for range tasks {
		dirs = append(dirs, cgroup(b, root))
	}
	addAll(b, g, dirs)
	b.Cleanup(g.closeAll) // before the cgroups go
	return g, dirs
}

func addAll(b *testing.B, g *groups, dirs []string) {
	for i, dir := range dirs {
		if err := g.add(key(uint64(i+1)), dir); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGroupRead reads groups of three events; an operation is one cgroup
// on one CPU.
func BenchmarkGroupRead(b *testing.B) {
	g, _ := benchGroups(b, 50)
	if err := g.start(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t := g.order[i%len(g.order)]
		if _, err := g.readGroup(&t.cpus[i%len(t.cpus)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWindow compares, in alternation, toggling what is open with opening
// and closing for each window; an operation is one of each over 50 tasks.
func BenchmarkWindow(b *testing.B) {
	g, dirs := benchGroups(b, 50)
	window := func() {
		if err := g.start(); err != nil {
			b.Fatal(err)
		}
		if err := g.stop(nil, func(*groupTask, total) {}); err != nil {
			b.Fatal(err)
		}
	}
	var toggle, reopen time.Duration
	for b.Loop() {
		begin := time.Now()
		window()
		toggle += time.Since(begin)

		g.closeAll()
		begin = time.Now()
		addAll(b, g, dirs)
		window()
		g.closeAll()
		reopen += time.Since(begin)
		addAll(b, g, dirs)
	}
	each := float64(b.N * len(dirs) * len(g.cpus))
	b.ReportMetric(float64(toggle)/each, "toggle-ns/group")
	b.ReportMetric(float64(reopen)/each, "reopen-ns/group")
	b.ReportMetric(float64(reopen)/float64(toggle), "reopen/toggle")
}

// BenchmarkSyscallTax measures the cost of a system call, outside and inside the
// followed task, while cps is closed, open between windows, and in a window.
func BenchmarkSyscallTax(b *testing.B) {
	quelltest.Need(b, quelltest.Root, quelltest.Cgroup2, quelltest.Tracepoints)
	root := cgroup2(b)
	followed := cgroup(b, root)
	in, out := work(b, followed), work(b, cgroup(b, root))
	const calls = 100_000
	var cost [2][3]time.Duration
	for b.Loop() {
		measure := func(state int) {
			cost[0][state] += out.do("call", calls)
			cost[1][state] += in.do("call", calls)
		}
		measure(0)
		p, err := OpenCPS(onlineCPUs(b), root)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Add(Target{Key: key(1), PerfDir: followed}); err != nil {
			b.Fatal(err)
		}
		measure(1)
		if err := p.Start(); err != nil {
			b.Fatal(err)
		}
		measure(2)
		if err := errors.Join(p.Stop(WindowEnd{}, func(sample.TaskKey, Reading) {}), p.Close()); err != nil {
			b.Fatal(err)
		}
	}
	for i, who := range []string{"others", "followed"} {
		for state, when := range []string{"closed", "between", "window"} {
			b.ReportMetric(float64(cost[i][state])/float64(b.N)/calls, who+"-"+when+"-ns/call")
		}
	}
}

// BenchmarkCPTLook looks at one known process per operation.
func BenchmarkCPTLook(b *testing.B) {
	t := progressFiles{proc: "/proc"}
	environs := 1
	pid := os.Getpid()
	p, ok := t.process(pid, &environs)
	if !ok {
		b.Fatal("our own process is not there")
	}
	t.known = []process{p}
	for b.Loop() {
		if _, ok := t.process(pid, &environs); !ok {
			b.Fatal("our own process is not known")
		}
	}
}
