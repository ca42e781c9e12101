package agent

import (
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Counting a signal may cost the machine more than it costs the agent: in a window each
// context switch between cgroups reprograms the counters, and if a hypervisor traps that, a
// switch takes a hundred µs more. The source has measured the cost of a switch; the kernel
// reports the rate of switches at any time. So the cost of the next window is known before
// it opens, and a signal whose cost exceeds sampling.max_tax is paused in it.

// overhead is the cost of a source's windows to the machine.
type overhead struct {
	known bool
	// share of the machine's CPU time, averaged over windows and pauses. It is an upper
	// bound: not every switch is between cgroups.
	share  float64
	paused bool
}

// resumeFraction is the fraction of the limit below which the tax must fall before a paused
// signal is counted again; this hysteresis prevents it from toggling.
const resumeFraction = 0.5

// next is the tax of another window; switches is the rate of context switches a second
// of all CPUs together, duty the share of time in which the source counts. A limit of 0
// means no limit.
func (x overhead) next(toll time.Duration, switches float64, cpus int, duty, limit float64) overhead {
	if toll <= 0 || cpus <= 0 {
		return overhead{}
	}
	n := overhead{known: true, share: toll.Seconds() * switches * duty / float64(cpus)}
	if x.paused {
		limit *= resumeFraction
	}
	n.paused = limit > 0 && n.share > limit
	return n
}

// pausedError says why a signal is paused; toll is what it adds to a context switch. Its cost
// is in quell_signal_tax_ratio and not in the text: a text that changes is logged each time.
func pausedError(signal sample.SignalName, toll time.Duration, limit float64) error {
	return fmt.Errorf("%s is paused: with %s more for each context switch, counting it would cost the machine more CPU time than sampling.max_tax allows (%.3g %%); "+
		"reduce sampling.duration, or raise sampling.max_tax (0: no limit)", signal, toll.Round(100*time.Nanosecond), 100*limit)
}
