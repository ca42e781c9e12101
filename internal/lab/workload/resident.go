package workload

import (
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/machine/chase"
	"github.com/quell-dev/quell/internal/machine/host"
)

// MaxCachedLoad is the longest time of a dependent load whose working set is in the last-level
// cache. Measured on a 2-vCPU AMD EPYC guest: 13 to 40 ns in the cache, 58 ns and more if
// part of the set comes from memory.
const MaxCachedLoad = 50 * time.Nanosecond

// LoadLatency measures the time of a dependent load on a CPU in a working set of the given
// size: the median of about ten passes that take about d in all. It shows whether the
// cache is available: other tasks may fill it, on a virtual machine also other guests.
func LoadLatency(cpu int, set int64, d time.Duration) (time.Duration, error) {
	memory, free, err := chase.Map(set)
	if err != nil {
		return 0, err
	}
	defer free()
	chase.Link(memory, 1)
	turn := len(memory) * 8 / chase.Line / 4
	var turns []time.Duration
	err = onCPU(cpu, func() {
		at := chase.Walk(memory, 0, 4*turn) // load it into the cache
		for begin := time.Now(); len(turns) < 10 || time.Since(begin) < d; {
			start := host.ThreadCPU()
			at = chase.Walk(memory, at, turn)
			turns = append(turns, (host.ThreadCPU()-start)/time.Duration(turn))
		}
	})
	if err != nil {
		return 0, fmt.Errorf("chase on CPU %d: %w", cpu, err)
	}
	slices.Sort(turns)
	return turns[len(turns)/2], nil
}
