package host

import (
	"errors"
	"os"
	"path"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
)

// Usage through kept files against opening, reading and closing them each
// time, in alternation.
func BenchmarkUsage(b *testing.B) {
	quelltest.Need(b, quelltest.Root)
	h := real(b)
	hier := sample.Unified
	if h.Layout().Unified == "" {
		hier = sample.V1CPU
	}
	c := open(b, h, hier, mkcgroup(b, h, treeOf(hier), "bench"))
	if _, err := c.Usage(); err != nil {
		if errors.Is(err, ErrNoUsage) {
			quelltest.Skip(b, "cgroup-usage", err)
		}
		b.Fatal(err)
	}
	name := "cpu.stat"
	if hier == sample.V1CPU {
		name = "cpuacct.usage"
	}
	file := h.Path(path.Join(c.Dir(), name))
	const batch = 100
	var kept, opened time.Duration
	n := 0
	for b.Loop() {
		start := time.Now()
		for range batch {
			if _, err := c.Usage(); err != nil {
				b.Fatal(err)
			}
		}
		middle := time.Now()
		for range batch {
			text, err := os.ReadFile(file)
			if err != nil {
				b.Fatal(err)
			}
			var u Usage
			u.parse(text)
		}
		kept += middle.Sub(start)
		opened += time.Since(middle)
		n += batch
	}
	b.ReportMetric(float64(kept)/float64(n), "kept-ns")
	b.ReportMetric(float64(opened)/float64(n), "opened-ns")
	b.ReportMetric(float64(opened)/float64(kept), "opened/kept")
}
