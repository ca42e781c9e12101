package blockio

import (
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
)

// BenchmarkRequest reads blocks of 4 KiB from the disk, one after the other,
// with and without a window, in alternation; and gives the kernel's own account
// of each program.
func BenchmarkRequest(b *testing.B) {
	quelltest.Need(b, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	task := target(b, h, sample.Unified, "bench")
	s, w := open(b, task), start(b, task.Dir)
	pass := func() float64 {
		began := time.Now()
		w.do("r", blocks)
		return float64(time.Since(began).Nanoseconds()) / blocks
	}
	closed, opened := math.Inf(1), math.Inf(1)
	for range b.N {
		closed = min(closed, pass())
		if err := s.Start(); err != nil {
			b.Fatal(err)
		}
		opened = min(opened, pass())
		stop(b, s)
	}
	b.ReportMetric(closed, "closed-ns/read")
	b.ReportMetric(opened, "open-ns/read")
	b.ReportMetric(opened/closed, "open/closed")

	// Last, since keeping this account costs too.
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	if err := s.Start(); err != nil {
		b.Fatal(err)
	}
	for range 5 {
		pass()
	}
	stop(b, s)
	for _, prog := range []*ebpf.Program{s.k.objs.OnMake, s.k.objs.OnComplete} {
		st, err := prog.Stats()
		if err != nil {
			b.Fatal(err)
		}
		info, err := prog.Info()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(st.Runtime.Nanoseconds())/float64(st.RunCount), info.Name+"-ns/run")
	}
}
