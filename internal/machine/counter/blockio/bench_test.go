package blockio

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// BenchmarkRequest reads blocks of 4 KiB from the disk, one after the other, with and
// without a window, and with and without reporting served tasks.
func BenchmarkRequest(b *testing.B) {
	quelltest.Need(b, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	for name, unserved := range map[string]bool{"served": false, "unserved": true} {
		b.Run(name, func(b *testing.B) {
			task := bpftest.Task(b, h, sample.Unified, "bench")
			k, err := loadPrograms(unserved)
			if err != nil {
				b.Fatal(err)
			}
			s := follow(b, k, task)
			w := start(b, task.Dir)
			bpftest.Cost(b, s, "read", k.Programs(), func() float64 {
				began := time.Now()
				w.Ask("r", blocks)
				return float64(time.Since(began).Nanoseconds()) / blocks
			})
		})
	}
}
