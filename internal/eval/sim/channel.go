package sim

import (
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Channel is the resource that tasks contend for.
type Channel string

// The channels. Each shows in one cost signal.
const (
	LLC       Channel = "llc"       // last-level cache: capacity
	Bandwidth Channel = "bandwidth" // memory bandwidth
	SMT       Channel = "smt"       // execution units shared by hardware threads
	CPU       Channel = "cpu"       // CPU time
	IO        Channel = "io"        // one block device
	Net       Channel = "net"       // one network interface
)

// Channels returns all of them.
func Channels() []Channel { return []Channel{LLC, Bandwidth, SMT, CPU, IO, Net} }

// Signal returns the cost signal in which the channel shows.
func (c Channel) Signal() sample.Signal {
	name := sample.CPI
	switch c {
	case CPU:
		name = sample.RunQ
	case IO, Net:
		name = sample.SignalName(c)
	}
	s, ok := sample.LookupSignal(name)
	if !ok {
		panic("sim: channel " + string(c) + " has no signal")
	}
	if c == IO || c == Net { // in the model pressure is a share of the channel, and the cost is per unit of work
		s.LeastPressure, s.PerWork, s.EffectAbs = 0, true, 0
	}
	return s
}

// calm returns the load of a machine's usual tasks on the channel, together, as a share of
// its capacity.
func (c Channel) calm() float64 {
	switch c {
	case LLC:
		return 0.8
	case SMT, CPU:
		return 0.5
	case Bandwidth:
		return 0.35
	}
	return 0.3
}

// stress returns the channel's stress on its users at a load, which is a share of its
// capacity; 0 if there is no effect.
//
//   - llc: the share of every task's working set that does not fit, if all tasks
//     lose the same share (LRU, equal density of accesses).
//   - bandwidth, io, net: the queue of M/M/1, ρ/(1−ρ).
//   - smt: the share of busy threads with a busy sibling, if the scheduler
//     fills cores first.
//   - cpu: waiting ÷ service of M/M/c (Sakasegawa, Ann. Inst. Stat. Math. 29,
//     1977, eq. 2.5).
func (c Channel) stress(load float64, cpus int) float64 {
	switch c {
	case LLC:
		return max(0, 1-1/max(load, 1e-9))
	case SMT:
		return min(1, max(0, 2*load-1))
	case CPU:
		r := min(load, 0.97)
		return math.Pow(r, math.Sqrt(2*float64(cpus+1))-1) / (float64(cpus) * (1 - r))
	}
	r := min(load, 0.95)
	return r / (1 - r)
}
