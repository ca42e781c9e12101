package observe

import (
	"fmt"
	"os"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
)

// mostSwap is how much the machine may swap in a steady window.
const mostSwap = 1 << 20

// checkEarly looks for violations that the rest of the window cannot undo: a share of CPU that
// has already used up its bound for the whole window.
func (o *Observer) checkEarly(cur machine, at time.Duration) {
	o.addEvidence(o.swapped(o.opened, cur), at)
	o.addEvidence(o.killed(o.opened, cur), at)
	o.throttled(o.opened, cur, at)
	if o.length <= 0 {
		return
	}
	part := min(1, cur.at.Sub(o.opened.at).Seconds()/o.length.Seconds())
	d := o.between(o.opened, cur)
	o.checkCPUShares(d.foreign*part, d.steal*part, cur, at)
}

// checkFinal compares the whole steady window with its bounds.
func (o *Observer) checkFinal(a, b machine, at time.Duration) {
	d := o.between(a, b)
	o.checkCPUShares(d.foreign, d.steal, b, at)
	o.addEvidence(o.swapped(a, b), at)
	o.addEvidence(o.killed(a, b), at)
	o.throttled(a, b, at)
}

func (o *Observer) checkCPUShares(foreign, steal float64, cur machine, at time.Duration) {
	const unit = "share of the roles' CPUs"
	if bound := float64(o.opt.Run.MaxForeignCPU); foreign > bound {
		text := fmt.Sprintf("processes outside the run used %.1f %% of CPUs %s in the measured window, more than %.1f %%", foreign*100, o.cpus, bound*100)
		if who := o.before.busiestForeign(o); who != "" {
			text += "; busiest processes allowed on these CPUs: " + who
		}
		o.addEvidence(&result.Evidence{Reason: result.ForeignCPU, Value: foreign, Bound: bound, Unit: unit, Text: text}, at)
	}
	if bound := float64(o.opt.Run.MaxSteal); steal > bound {
		o.addEvidence(&result.Evidence{Reason: result.Steal, Value: steal, Bound: bound, Unit: unit,
			Text: fmt.Sprintf("the hypervisor took %.1f %% of CPUs %s in the measured window, more than %.1f %%", steal*100, o.cpus, bound*100)}, at)
	}
}

func (o *Observer) swapped(a, b machine) *result.Evidence {
	bytes := float64(b.swapIn-a.swapIn+b.swapOut-a.swapOut) * float64(os.Getpagesize())
	if bytes <= mostSwap {
		return nil
	}
	return &result.Evidence{Reason: result.Swap, Value: bytes, Bound: mostSwap, Unit: "bytes",
		Text: fmt.Sprintf("the machine swapped %.1f MiB in the measured window", bytes/(1<<20))}
}

func (o *Observer) killed(a, b machine) *result.Evidence {
	n := float64(b.oomKill - a.oomKill)
	if n == 0 {
		return nil
	}
	return &result.Evidence{Reason: result.OOM, Value: n, Unit: "processes", Text: "the OOM killer killed processes in the measured window"}
}

// throttled looks for throttling by a CPU quota: no study sets one.
func (o *Observer) throttled(a, b machine, at time.Duration) {
	for i, p := range o.parts {
		d := b.usage[i].Throttled - a.usage[i].Throttled
		if d <= 0 {
			continue
		}
		o.addEvidence(&result.Evidence{Reason: result.Throttled, Role: p.name, Value: d.Seconds(), Unit: "s",
			Text: fmt.Sprintf("%s was throttled for %s by a CPU quota that the study did not set", p.name, d.Round(time.Millisecond))}, at)
	}
}
