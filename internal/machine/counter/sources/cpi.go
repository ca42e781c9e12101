package sources

import (
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bperf"
)

// openCPI opens the cheaper of the two ways to count cpi, or the one that is possible. Both count the
// same events, so their readings have one variant.
func openCPI(online sample.Set, cgroup2 string) (counter.Source, error) {
	p, err := counter.OpenCPI(online, cgroup2)
	if err != nil {
		return withoutCgroupMode(online, err)
	}
	b, err := bperf.Open(p.Events(), p.Info(), online)
	if err != nil {
		p.NoteMissing(err)
		return p, nil
	}
	var used, other counter.Source = p, b
	if clearlyLess(b.Info().SwitchOverhead, p.Info().SwitchOverhead) {
		used, other = b, p
	}
	if err := other.Close(); err != nil {
		p.NoteMissing(err)
	}
	return used, nil
}

// withoutCgroupMode opens the way by eBPF where perf sees no cgroups, for the reason err: it needs
// counters of CPUs only. If there are none, that is the reason: no change of cgroups would help.
func withoutCgroupMode(online sample.Set, err error) (counter.Source, error) {
	p, none := counter.CPIOfCPUs(online)
	if none != nil {
		return nil, none
	}
	p.NoteMissing(err)
	b, none := bperf.Open(p.Events(), p.Info(), online)
	if none != nil {
		return nil, err
	}
	return b, nil
}

// clearly is the least ratio of two overheads that makes a difference: each is the least of some
// tens of measurements, which vary by a few percent between two starts.
const clearly = 1.25

// clearlyLess reports whether a switch costs clearly less by eBPF than in cgroup mode. An
// overhead of 0 is not known.
func clearlyLess(byEBPF, inCgroupMode time.Duration) bool {
	return byEBPF > 0 && float64(byEBPF)*clearly <= float64(inCgroupMode)
}
