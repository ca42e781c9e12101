package runq

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// BenchmarkSwitch passes a byte back and forth between two threads on one CPU: two
// wake-ups and two switches a round trip. It compares, in alternation, no window, a
// window that follows neither thread, and one that follows both, and reports the
// kernel's own measurement of each program.
func BenchmarkSwitch(b *testing.B) {
	neither, pair := unified(b, "neither"), unified(b, "pair")
	echo := exec.Command("cat")
	inR, inW := pipe(b)
	outR, outW := pipe(b)
	echo.Stdin, echo.Stdout = inR, outW
	if err := echo.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { echo.Process.Kill(); echo.Wait() })
	pin(b, echo.Process.Pid, 1)
	runtime.LockOSThread() // never unlocked: the pinned thread ends with the benchmark
	pin(b, 0, 1)
	toCgroup(b, pair.Dir, echo.Process.Pid)
	toCgroup(b, pair.Dir, unix.Getpid())
	b.Cleanup(func() { toCgroup(b, quelltest.CgroupMount(b, ""), unix.Getpid()) })

	const trips = 2000
	to, from := int(inW.Fd()), int(outR.Fd())
	pass := func() float64 {
		began := host.Monotonic()
		var buf [1]byte
		for range trips {
			if _, err := unix.Write(to, buf[:]); err != nil {
				b.Fatal(err)
			}
			if _, err := unix.Read(from, buf[:]); err != nil {
				b.Fatal(err)
			}
		}
		return float64(host.Monotonic()-began) / trips
	}
	programs := map[string]*Program{"closed": nil, "neither": program(b, maxTasks, neither), "both": program(b, maxTasks, pair)}
	best := map[string]float64{"closed": math.Inf(1), "neither": math.Inf(1), "both": math.Inf(1)}
	for range b.N {
		for name, p := range programs {
			if p != nil {
				open(b, p)
			}
			best[name] = min(best[name], pass())
			if p != nil {
				stop(b, p)
			}
		}
	}
	for name, ns := range best {
		b.ReportMetric(ns, name+"-ns/trip")
		b.ReportMetric(ns/best["closed"], name+"/closed")
	}

	// Last, since this measurement costs something too.
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, name := range []string{"neither", "both"} {
		p := programs[name]
		open(b, p)
		for range 5 {
			pass()
		}
		stop(b, p)
		for _, prog := range []*ebpf.Program{p.k.objs.OnSwitch, p.k.objs.OnWakeup} {
			s, err := prog.Stats()
			if err != nil {
				b.Fatal(err)
			}
			info, err := prog.Info()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), name+"-"+info.Name+"-ns/run")
		}
	}
}

// BenchmarkWindow opens and closes windows.
func BenchmarkWindow(b *testing.B) {
	for _, tasks := range []int{1, 1000} {
		b.Run(fmt.Sprintf("tasks=%d", tasks), func(b *testing.B) {
			p := program(b, maxTasks)
			for i := range tasks {
				err := p.Add(counter.Target{
					Key:   sample.TaskKey{Inode: 1<<40 + uint64(i)},
					Below: func() ([]uint64, error) { return nil, nil },
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			var start, cpu time.Duration
			for b.Loop() {
				began, used := time.Now(), cpuTime(b)
				open(b, p)
				start += time.Since(began)
				stop(b, p)
				cpu += cpuTime(b) - used
			}
			n := float64(b.N)
			b.ReportMetric(float64(start.Microseconds())/n, "start-us/op")
			b.ReportMetric(float64(cpu.Microseconds())/n, "cpu-us/op")
		})
	}
}

func open(b *testing.B, p *Program) {
	if err := p.Start(); err != nil {
		b.Fatal(err)
	}
}

func stop(b *testing.B, p *Program) {
	err := p.Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return 0, true }}, func(sample.TaskKey, counter.Reading) {})
	if err != nil {
		b.Fatal(err)
	}
}

// cpuTime returns this process's CPU time.
func cpuTime(b *testing.B) time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func pipe(b *testing.B) (r, w *os.File) {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// BenchmarkCut walks over all threads of the machine, after adding 2000.
func BenchmarkCut(b *testing.B) {
	const threads = 2000
	p := program(b, maxTasks)
	done := make(chan struct{})
	var up, down sync.WaitGroup
	for range threads {
		up.Add(1)
		down.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			up.Done()
			<-done
		})
	}
	up.Wait()
	defer down.Wait()
	defer close(done)
	for b.Loop() {
		if err := p.k.settleWaits(); err != nil {
			b.Fatal(err)
		}
	}
	dirs, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(dirs)), "ns/thread")
}
