// Package sources has the table of the signals that this program can count.
package sources

import (
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/blockio"
	"github.com/quell-dev/quell/internal/machine/counter/netq"
	"github.com/quell-dev/quell/internal/machine/counter/runq"
	"github.com/quell-dev/quell/internal/machine/counter/uprobe"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Source is a counter.Source or a counter.MachineSource.
type Source interface {
	Info() counter.Info
	Close() error
}

// Open opens the source of a signal on a host with this topology. budget is the CPU time of
// the canary in a window. Often the error is a *counter.NotSupportedError.
func Open(signal sample.SignalName, h *host.Host, t host.Topology, budget time.Duration) (Source, error) {
	switch signal {
	case sample.CPI:
		return openCPI(t.Online, h.Layout().Unified)
	case sample.CPS:
		return openCPS(t.Online, h.Layout().Unified)
	case sample.CPT:
		return counter.OpenCPT(h.Path("/proc"), uprobe.Prober{})
	case sample.RunQ:
		return runq.Open()
	case sample.IO:
		return blockio.Open()
	case sample.Net:
		return netq.Open()
	case sample.Probe:
		return counter.OpenCanary(counter.Caches(t), budget)
	case sample.Steal:
		return counter.OpenSteal(h)
	}
	return nil, fmt.Errorf("open source: no program counts signal %s", signal)
}
