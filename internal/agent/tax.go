package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/host"
)

// Counting a signal may cost the machine more than it costs the agent: in a
// window each context switch between cgroups reprograms the counters, and where
// a hypervisor traps that, a switch takes a hundred µs more. What a switch costs
// the source has measured; how often tasks switch the kernel tells at any time.
// So what the next window would cost is known before it is opened, and a signal
// that is over sampling.max_tax rests in it.

// tax is what a source's windows cost the machine.
type tax struct {
	known bool
	// share of the machine's CPU time, on average over windows and pauses. It
	// is an upper bound: not every switch is between cgroups.
	share float64
	rests bool
}

// tolled is a source that knows what it adds to a context switch in a window.
type tolled interface{ Toll() time.Duration }

// relief is how far below the limit the tax must have fallen until a signal
// that rests is counted again: at its limit it would come and go.
const relief = 0.5

// next is the tax of another window, in which the machine's CPUs together switch
// so often a second; duty is the share of time in which it counts. At limit 0
// there is none.
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

// levy works out what each source would cost in the next window, by the context
// switches of the one that has ended, which was so long (s).
func (a *Agent) levy(from, to host.CPUTimes, wall float64) {
	if from.Switches == 0 || to.Switches < from.Switches || wall <= 0 {
		return // it is not known: as before
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
		a.degrade("cost of "+string(s.Signal()), err)
	}
}

// rests reports whether a source is left out of the next window.
func (a *Agent) rests(s counter.Source) bool {
	i := slices.Index(a.Sources, s)
	return i >= 0 && a.taxes[i].rests
}

// restError says why a signal is not counted for now. How much it would cost is
// left to quell_signal_tax_ratio: a text that changes is logged each time.
type restError struct {
	source counter.Source
	toll   time.Duration
	most   float64
}

func (e restError) Error() string {
	return fmt.Sprintf("%s rests: with %s more for each context switch, counting it would cost the machine more CPU time than sampling.max_tax allows (%.3g %%); "+
		"count less of the time (sampling.duration), or allow more (0: any)", e.source.Signal(), e.toll.Round(100*time.Nanosecond), 100*e.most)
}
