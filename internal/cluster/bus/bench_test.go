package bus

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/format/wire"
)

// BenchmarkStream sends batches of 50 samples of many machines to a server in a separate
// process and reads and decodes them in parallel. Each machine sends the next batch when
// the previous one is acknowledged. It measures the cost of the transport without agents'
// disks and without a store. It reports samples per second.
func BenchmarkStream(b *testing.B) {
	for _, machines := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("machines=%d", machines), func(b *testing.B) {
			a := newAuthority(b)
			s := startServer(b, a, embedded.Options{})
			hub := openBus(b, a, s.url(), 1)
			c, err := hub.Consume(b.Context(), Samples)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			data, senders := make([][]byte, machines), make([]*Sender, machines)
			for i := range data {
				machine := fmt.Sprint("node-", i)
				if senders[i], err = OpenSender(b.Context(), Options{URL: s.url(), Name: machine, Credentials: credentials(b, a, authority.Agent, machine, 0)}); err != nil {
					b.Fatal(err)
				}
				defer senders[i].Close()
				batch := wire.Batch{Key: wire.Key{Machine: machine, Boot: "b", N: 1}, Samples: samples(machine, 50)}
				if data[i], err = batch.Encode(); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			var sending sync.WaitGroup
			for i := range machines {
				n := b.N / machines
				if i < b.N%machines {
					n++
				}
				sending.Go(func() {
					for range n {
						ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
						err := senders[i].Send(ctx, data[i])
						cancel()
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			var batch wire.Batch
			for read := 0; read < b.N && !b.Failed(); {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				all, err := c.Fetch(ctx, nil, min(1000, b.N-read))
				cancel()
				if err != nil || len(all) == 0 {
					b.Fatalf("%d of %d, %v", read, b.N, err)
				}
				for i := range all {
					if err := all[i].Batch(&batch); err != nil {
						b.Fatal(err)
					}
				}
				read += len(all)
				c.Ack(all[len(all)-1].Seq)
			}
			sending.Wait()
			b.ReportMetric(float64(b.N)*50/b.Elapsed().Seconds(), "samples/s")
			b.ReportMetric(float64(len(data[0]))/50, "B/sample")
		})
	}
}
