package counter_test

import (
	"errors"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// BenchmarkCanaryBesideAStreamer measures the effect of a streamer on one CPU on the
// canary on another. A ping-pong shows whether the two CPUs use one cache now
// (workload.SharesCache); a trial in which that changed is counted for neither kind. For
// each kind it reports the number of trials, the mean ratio of with the streamer ÷
// alone, and the mean time of a load in both states.
func BenchmarkCanaryBesideAStreamer(b *testing.B) {
	quelltest.Need(b, quelltest.TwoCPUs)
	h, err := host.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	topology, err := h.Topology()
	if err != nil {
		b.Fatal(err)
	}
	here, there := topology.CPUs[1].ID, topology.CPUs[0].ID
	streams := quelltest.Streamer(b, there)
	c, err := counter.OpenCanary([]counter.Cache{{Name: "(cache)", CPUs: sample.SetOf(here), Size: topology.CPUs[1].LLC.Size}}, 60*time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	shared := func() (yes, known bool) {
		trip, err := workload.PingPong(here, there, 50*time.Millisecond)
		if errors.Is(err, workload.ErrNotParallel) {
			return false, false // the CPUs are too busy
		}
		if err != nil {
			b.Fatal(err)
		}
		return workload.SharesCache(trip), true
	}
	window := func() (cost float64) {
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		<-time.After(500 * time.Millisecond)
		if err := c.Stop(); err != nil {
			b.Fatal(err)
		}
		c.MachineReadings(func(_ string, _ sample.Set, r counter.Reading) { cost = r.Cost })
		return cost
	}
	var n, ratio, alone, beside [2]float64
	for range b.N {
		before, known := shared()
		was := window()
		streams(true)
		is := window()
		streams(false)
		kind := 0
		if before {
			kind = 1
		}
		if after, still := shared(); !known || !still || after != before {
			b.Logf("moved, or unknown: %.1f ns a load alone, %.1f with the streamer", 1e9*was, 1e9*is)
			continue
		}
		b.Logf("shared %v: %.1f ns a load alone, %.1f with the streamer", before, 1e9*was, 1e9*is)
		n[kind]++
		ratio[kind], alone[kind], beside[kind] = ratio[kind]+is/was, alone[kind]+1e9*was, beside[kind]+1e9*is
	}
	for kind, name := range []string{"apart", "shared"} {
		b.ReportMetric(n[kind], name+"-trials")
		if n[kind] > 0 {
			b.ReportMetric(ratio[kind]/n[kind], name+"-ratio")
			b.ReportMetric(alone[kind]/n[kind], name+"-alone-ns/load")
			b.ReportMetric(beside[kind]/n[kind], name+"-beside-ns/load")
		}
	}
}
