package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Counting a signal may cost the machine more than it costs the agent: in a window each
// context switch between cgroups reprograms the counters, and if a hypervisor traps that, a
// switch takes a hundred µs more. The source has measured the cost of a switch; the kernel
// reports the rate of switches at any time. So the cost of the next window is known before
// it opens, and a signal whose cost exceeds sampling.max_tax is paused in it.

// tax is the cost of a source's windows to the machine.
type tax struct {
	known bool
	// share of the machine's CPU time, averaged over windows and pauses. It is an upper
	// bound: not every switch is between cgroups.
	share float64
	rests bool
}

// tolled is a source that knows what it adds to a context switch in a window.
type tolled interface{ Toll() time.Duration }

// relief is the fraction of the limit below which the tax must fall before a paused
// signal is counted again; this hysteresis prevents it from toggling.
const relief = 0.5

// next is the tax of another window; switches is the rate of context switches a second
// of all CPUs together, duty the share of time in which the source counts. A limit of 0
// means no limit.
func (x tax) next(toll time.Duration, switches float64, cpus int, duty, limit float64) tax {
	if toll <= 0 || cpus <= 0 {
		return tax{}
	}
	n := tax{known: true, share: toll.Seconds() * switches * duty / float64(cpus)}
	if x.rests {
		limit *= relief
	}
	n.rests = limit > 0 && n.share > limit
	return n
}

// levy computes what each source would cost in the next window, from the context
// switches of the window that has ended, which lasted wall seconds.
func (a *Agent) levy(from, to host.CPUTimes, wall float64) {
	if from.Switches == 0 || to.Switches < from.Switches || wall <= 0 {
		return // the rate is not known: nothing changes
	}
	rate := float64(to.Switches-from.Switches) / wall
	duty := min(1, a.config.Sampling.Duration.Seconds()/a.config.Sampling.Period.Seconds())
	for i, s := range a.Sources {
		t, ok := s.(tolled)
		if !ok {
			continue
		}
		a.taxes[i] = a.taxes[i].next(t.Toll(), rate, a.Topology.Online.Len(), duty, a.config.Sampling.MaxTax)
		var err error
		if a.taxes[i].rests {
			err = restError{s, t.Toll(), a.config.Sampling.MaxTax}
		}
		a.degrade("overhead of "+string(s.Signal()), err)
	}
}

// rests reports whether a source is paused in the next window.
func (a *Agent) rests(s counter.Source) bool {
	i := slices.Index(a.Sources, s)
	return i >= 0 && a.taxes[i].rests
}

// restError says why a signal is paused. Its cost is in quell_signal_tax_ratio and not
// in the text: a text that changes is logged each time.
type restError struct {
	source counter.Source
	toll   time.Duration
	most   float64
}

func (e restError) Error() string {
	return fmt.Sprintf("%s is paused: with %s more for each context switch, counting it would cost the machine more CPU time than sampling.max_tax allows (%.3g %%); "+
		"reduce sampling.duration, or raise sampling.max_tax (0: no limit)", e.source.Signal(), e.toll.Round(100*time.Nanosecond), 100*e.most)
}
