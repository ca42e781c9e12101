package runq

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// BenchmarkServed measures the cost of a switch with and without reporting served
// tasks, as the kernel measures the program, in alternation: between two threads that
// wake each other while no thread waits, and between threads that only yield. Of these
// 8 or 64 wait at each switch, of one task or of several in turn; each wait then has as
// many slices.
func BenchmarkServed(b *testing.B) {
	quelltest.Need(b, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs, "perl")
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, waiters := range []int{0, 8, 64} {
		for _, tasks := range []int{1, 2, 9, 65} {
			if tasks > max(2, waiters+1) {
				continue
			}
			b.Run(fmt.Sprintf("waiters=%d/tasks=%d", waiters, tasks), func(b *testing.B) {
				// Cgroups first: they are removed last, when they are empty.
				groups := make([]*group, tasks)
				for i := range groups {
					groups[i] = unified(b, fmt.Sprint(i))
				}
				join := func(i, pid int) { toCgroup(b, groups[i%len(groups)].Dir, pid) }
				if waiters == 0 {
					one, two := pingPong(b)
					join(0, one)
					join(1, two)
				} else {
					for i := range waiters + 1 {
						join(i, yielder(b))
					}
				}
				programs := [2]*Program{programWith(b, maxTasks, options{served: true}, groups...), program(b, maxTasks, groups...)}
				var ns [2][]float64
				for range b.N {
					for i, p := range programs {
						began, err := p.k.objs.OnSwitch.Stats()
						if err != nil {
							b.Fatal(err)
						}
						open(b, p)
						<-time.After(100 * time.Millisecond)
						stop(b, p)
						ended, err := p.k.objs.OnSwitch.Stats()
						if err != nil {
							b.Fatal(err)
						}
						ns[i] = append(ns[i], float64(ended.Runtime-began.Runtime)/float64(ended.RunCount-began.RunCount))
					}
				}
				for i := range ns {
					slices.Sort(ns[i])
				}
				without, with := ns[0][len(ns[0])/2], ns[1][len(ns[1])/2]
				b.ReportMetric(without, "without-ns/switch")
				b.ReportMetric(with, "with-ns/switch")
				b.ReportMetric(with/without, "with/without")
			})
		}
	}
}

// yielder starts a thread on CPU 1 that only yields.
func yielder(b *testing.B) int {
	cmd := exec.Command("perl", "-e", fmt.Sprintf("syscall(%d) while 1", unix.SYS_SCHED_YIELD))
	return begun(b, cmd)
}

// pingPong starts two processes on CPU 1 that pass a byte back and forth.
func pingPong(b *testing.B) (one, two int) {
	aR, aW := pipe(b)
	bR, bW := pipe(b)
	x, y := exec.Command("cat"), exec.Command("cat")
	x.Stdin, x.Stdout = aR, bW
	y.Stdin, y.Stdout = bR, aW
	if _, err := aW.Write([]byte{0}); err != nil {
		b.Fatal(err)
	}
	return begun(b, x), begun(b, y)
}

func begun(b *testing.B, cmd *exec.Cmd) int {
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	pin(b, cmd.Process.Pid, 1)
	return cmd.Process.Pid
}
