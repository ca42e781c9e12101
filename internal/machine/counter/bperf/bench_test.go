package bperf

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// pass sends a byte to descriptor 4 and waits for one from descriptor 3, as often as a line of
// the input says, and prints how many nanoseconds that took; or returns each byte.
func pass(first bool) error {
	runtime.LockOSThread()
	var b [1]byte
	if !first {
		for {
			if n, err := unix.Read(3, b[:]); err != nil || n == 0 {
				return err
			}
			if _, err := unix.Write(4, b[:]); err != nil {
				return err
			}
		}
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		began := time.Now()
		for range n {
			if _, err := unix.Write(4, b[:]); err != nil {
				return err
			}
			if _, err := unix.Read(3, b[:]); err != nil {
				return err
			}
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
	return nil
}

// BenchmarkSwitch passes a byte back and forth between two tasks on one CPU. It compares, in
// alternation, no window (twice: the difference is noise), a window, and the same events in
// perf's cgroup mode, and reports the kernel's own measurement of the program. Software events
// cost no access to a PMU.
func BenchmarkSwitch(b *testing.B) {
	h, topo := topology(b)
	quelltest.Need(b, quelltest.PerfSoftware)
	tasks := []counter.Target{bpftest.Task(b, h, sample.Unified, "ping"), bpftest.Task(b, h, sample.Unified, "echo")}
	aIn, bOut, err1 := os.Pipe()
	bIn, aOut, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		b.Fatal(err1, err2)
	}
	begin := func(what, dir string, files ...*os.File) *quelltest.Child {
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.ExtraFiles = append(os.Environ(), childEnv+"="+what, "GOMAXPROCS=1"), files
		c := quelltest.StartChild(b, cmd, dir)
		for _, f := range files {
			f.Close()
		}
		pin(b, c.PID, 1)
		return c
	}
	begin("echo", tasks[1].Dir, bIn, bOut)
	ping := begin("ping", tasks[0].Dir, aIn, aOut)
	const trips = 250
	run := func() float64 {
		least := math.Inf(1)
		for range 20 {
			ns, err := strconv.ParseFloat(ping.Ask(trips), 64)
			if err != nil {
				b.Fatal(err)
			}
			least = min(least, ns/(2*trips))
		}
		return least
	}
	s := open(b, topo.Online, tasks...)
	var perf []*counter.EventCounter
	for _, task := range tasks {
		for _, e := range events(b) {
			c, err := e.OpenCgroup(task.Dir, topo.Online)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(c.Close)
			perf = append(perf, c)
		}
	}
	toggle := func(on bool) {
		for _, c := range perf {
			if err := c.Toggle(on); err != nil {
				b.Fatal(err)
			}
		}
	}
	ways := []struct {
		name       string
		start, end func()
	}{
		{"closed", func() {}, func() {}},
		{"again", func() {}, func() {}},
		{"ebpf", func() { bpftest.Start(b, s) }, func() { bpftest.Stop(b, s) }},
		{"cgroup-mode", func() { toggle(true) }, func() { toggle(false) }},
	}
	best := map[string]float64{}
	for range b.N {
		for _, w := range ways {
			w.start()
			ns := run()
			w.end()
			if old, ok := best[w.name]; !ok || ns < old {
				best[w.name] = ns
			}
		}
	}
	for _, w := range ways {
		b.ReportMetric(best[w.name]-best["closed"], w.name+"-ns/switch")
	}
	b.ReportMetric(best["closed"], "ns/switch")

	// Last, since this measurement costs something too.
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	bpftest.Start(b, s)
	run()
	bpftest.Stop(b, s)
	st, err := s.programs.objs.OnSwitch.Stats()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(st.Runtime.Nanoseconds())/float64(st.RunCount), "program-ns/run")
	b.ReportMetric(float64(s.Info().SwitchOverhead.Nanoseconds()), "as-measured-at-start-ns")
}

// BenchmarkWindow opens and closes windows.
func BenchmarkWindow(b *testing.B) {
	h, topo := topology(b)
	for _, tasks := range []int{1, 1000} {
		b.Run(fmt.Sprintf("tasks=%d", tasks), func(b *testing.B) {
			s := open(b, topo.Online)
			task := bpftest.Task(b, h, sample.Unified, "window")
			for i := range tasks {
				other := task
				other.Key.Inode += uint64(i) << 32
				other.Below = func() ([]uint64, error) { return nil, nil }
				if err := s.Add(other); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				bpftest.Start(b, s)
				bpftest.Stop(b, s)
			}
		})
	}
}
