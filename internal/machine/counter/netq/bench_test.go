package netq

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
)

// BenchmarkPacket sends datagrams of 100 bytes through an interface that is not
// limited, with and without a window, and with and without accounting of the service.
func BenchmarkPacket(b *testing.B) {
	sends, _ := shaped(b)
	sends.Run("tc qdisc replace dev q0 root pfifo limit 10000")
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
			w := start(b, "10.78.0.2:9000", task.Dir, sends)
			const packets = 20000
			bpftest.Cost(b, s, "packet", k.counts.Programs(), func() float64 {
				began := time.Now()
				w.Ask(packets, 100)
				return float64(time.Since(began).Nanoseconds()) / packets
			})
		})
	}
}
