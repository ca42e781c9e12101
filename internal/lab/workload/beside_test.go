package workload

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// BenchmarkBesideAStreamer measures the effect of a streamer on one CPU on a chase
// through 8 MiB on another, together with the ping-pong between the two, which shows
// whether they currently share a cache. Contended is the share of the trials in which a
// load took more than twice as long.
func BenchmarkBesideAStreamer(b *testing.B) {
	two := cpus(b, 2)
	stream := quelltest.Streamer(b, two[0])
	var contended, alone, beside, trip float64
	for range b.N {
		rt, err := PingPong(two[1], two[0], 30*time.Millisecond)
		if err != nil {
			b.Fatal(err)
		}
		before, err := LoadLatency(two[1], 8<<20, 100*time.Millisecond)
		if err != nil {
			b.Fatal(err)
		}
		stream(true)
		after, err := LoadLatency(two[1], 8<<20, 200*time.Millisecond)
		stream(false)
		if err != nil {
			b.Fatal(err)
		}
		if after > 2*before {
			contended++
		}
		alone, beside, trip = alone+float64(before), beside+float64(after), trip+float64(rt.Min)
		b.Logf("a round trip %v, a load %v alone, %v with the streamer", rt.Min, before, after)
	}
	n := float64(b.N)
	b.ReportMetric(contended/n, "contended")
	b.ReportMetric(alone/n, "alone-ns/load")
	b.ReportMetric(beside/n, "beside-ns/load")
	b.ReportMetric(trip/n, "round-trip-ns")
}
