package sample

import (
	"math"
	"time"
)

// SignalName names a cost signal.
type SignalName string

// The signals that are built in.
const (
	CPI  SignalName = "cpi"
	CPT  SignalName = "cpt"
	CPS  SignalName = "cps"
	RunQ SignalName = "runq"
	IO   SignalName = "io"
	Net  SignalName = "net"
	// Probe and Steal are of the machine as a whole and of no task.
	Probe SignalName = "probe"
	Steal SignalName = "steal"
)

// OfMachine reports whether a signal is measured of the machine and of no task.
func (n SignalName) OfMachine() bool { return n == Probe || n == Steal }

// Domain says what a suspect must share with a victim to be able to hurt it.
type Domain string

const (
	// SharedCPU: they can run on the same CPU.
	SharedCPU Domain = "cpu"
	// SharedCache: they can run under the same last-level cache or on the
	// same memory node.
	SharedCache Domain = "cache"
	// SharedDevice: they used the same disk.
	SharedDevice Domain = "device"
	// SharedInterface: they sent through the same network interface.
	SharedInterface Domain = "interface"
	// Elsewhere: whoever is to blame is in another virtual machine. No task is
	// ever a suspect.
	Elsewhere Domain = "host"
)

// OfCPUs reports whether it follows from the CPUs that tasks may run on what
// they share, and from their CPU usage how much of it they use.
func (d Domain) OfCPUs() bool { return d == SharedCPU || d == SharedCache }

// Signal describes a cost signal: resource spent per unit of work done, higher
// is worse. Detection knows nothing of a signal but what stands here.
type Signal struct {
	Name SignalName
	Unit string
	Cost string // in words, for people
	// Pressure is the unit of what suspects are ranked by.
	Pressure string
	// Domain is what a suspect must share with the victim.
	Domain Domain
	// LeastCPU and LeastRate: a victim's sample counts only if the task used
	// at least LeastCPU CPU-s/s, or was active at least LeastRate times a
	// second where LeastRate is not 0, or was starved (Active).
	LeastCPU, LeastRate float64
	// Activity is the extra that counts what LeastRate asks for.
	Activity Extra
	// Load is what the pressure is made of where it is not CPU usage.
	Load Load
	// PerWork: the cost is Pressure per unit of work, so a task's work is its
	// pressure ÷ its cost; else its pressure says how much it did.
	PerWork bool
	// OwnWork: the work is counted by the task itself, or as its operator said, so
	// that it is the same work whoever else is there.
	OwnWork bool
	// LeastPressure (in the unit of Pressure) is what a suspect must have used
	// in the bad intervals (switch "least-pressure"); 0 where Pressure is CPU
	// usage, for which detection has a parameter.
	LeastPressure float64
	// EffectAbs (in Unit) and EffectRel (share of the mean): how far above the
	// mean a cost must be, at least, to matter (switch "least-effect").
	EffectAbs, EffectRel float64
	// Min and Max bound what a sane measurement can say. CPI's upper bound is
	// what a chase through remote memory may cost (some 500 ns a load of two or
	// three instructions): 60 was measured beside a full cache, and a bound of
	// 20 had thrown away just the samples that show contention.
	Min, Max float64
}

// Load describes a pressure in operations a second: each operation is one, and so
// many bytes weigh as much as one more.
type Load struct {
	Ops, Offered Extra   // operations; Offered, where it was measured, goes before Ops
	Bytes        Extra   // of those operations
	PerOp        float64 // bytes; 0: the pressure is CPU usage
}

// RequestBytes is how many bytes weigh as much as one more request in the
// pressure of IO: a disk's time is spent on requests as well as on bytes (as the
// kernel's own linear model of a disk has it, block/blk-iocost.c).
const RequestBytes = 64 << 10

// PacketBytes is the same for packets in the pressure of Net: a shaped link's time
// goes to bytes, of which a full packet of a usual link has this many; a slow
// receiver's goes to packets.
const PacketBytes = 1500

// CPUPerSecond is the unit of CPU usage: seconds of CPU time per second.
const CPUPerSecond = "CPU-s/s"

var signals = []Signal{
	{Name: CPI, Unit: "cycles/instruction", Cost: "cycles ÷ instructions", Pressure: CPUPerSecond, Domain: SharedCache, PerWork: true,
		LeastCPU: 0.25, EffectRel: 0.05, Min: 0.1, Max: 1000},
	{Name: CPT, Unit: "CPU-s/transaction", Cost: "CPU time ÷ transactions", Pressure: CPUPerSecond, Domain: SharedCache, PerWork: true,
		OwnWork: true, LeastCPU: 0.25, EffectRel: 0.05, Min: 1e-9, Max: 3600},
	{Name: CPS, Unit: "CPU-s/call", Cost: "CPU time ÷ system calls", Pressure: CPUPerSecond, Domain: SharedCache, PerWork: true,
		LeastCPU: 0.25, EffectRel: 0.05, Min: 1e-9, Max: 3600},
	{Name: RunQ, Unit: "s/CPU-s", Cost: "run-queue wait behind other tasks ÷ CPU time", Pressure: CPUPerSecond, Domain: SharedCPU,
		LeastCPU: 0.02, LeastRate: 20, Activity: Wakeups, EffectAbs: 0.05, EffectRel: 0.20, Min: 0, Max: 1e4},
	{Name: IO, Unit: "s/request", Cost: "time of requests to disks ÷ requests", Pressure: "(requests + 64 KiB)/s", Domain: SharedDevice,
		LeastPressure: 10, LeastCPU: math.MaxFloat64, LeastRate: 10, Activity: IOOps, Load: Load{IOOps, noExtra, IOBytes, RequestBytes},
		EffectRel: 0.20, Min: 0, Max: 3600},
	{Name: Net, Unit: "s/packet", Cost: "wait in interfaces' queues ÷ packets", Pressure: "(packets + 1500 B)/s", Domain: SharedInterface,
		LeastPressure: 100, LeastCPU: math.MaxFloat64, LeastRate: 100, Activity: NetPackets, Load: Load{NetPackets, NetQueued, NetBytes, PacketBytes},
		EffectAbs: 100e-6, EffectRel: 0.20, Min: 0, Max: 3600},
	{Name: Probe, Unit: "s/load", Cost: "time of the canary's loads ÷ loads", Pressure: CPUPerSecond, Domain: SharedCache,
		EffectRel: 0.10, Min: 1e-10, Max: 1e-3},
	{Name: Steal, Unit: "s/CPU-s", Cost: "stolen time ÷ CPU time", Pressure: "none", Domain: Elsewhere,
		LeastCPU: 0.25, EffectAbs: 0.02, Min: 0, Max: 1e4},
}

// Signals returns every built-in signal.
func Signals() []Signal { return append([]Signal(nil), signals...) }

// LookupSignal finds a signal by name.
func LookupSignal(n SignalName) (Signal, bool) {
	for _, s := range signals {
		if s.Name == n {
			return s, true
		}
	}
	return Signal{}, false
}

// starved is from how many seconds a second on the waits of a task's requests, or of its
// threads, say enough about it, however few they are: a task that hardly gets anything
// served does little because of that.
const starved = 0.5

// Active reports whether a sample with this CPU usage (CPU-s/s), activity (Rate) and
// cost says enough about its task to judge it.
func (s *Signal) Active(cpu, rate, cost float64) bool {
	if cpu >= s.LeastCPU || s.LeastRate > 0 && rate >= s.LeastRate {
		return true
	}
	of := rate
	if s.Domain == SharedCPU {
		of = cpu
	}
	return s.LeastRate > 0 && cost*of >= starved
}

// Rate is a task's activity, 1/s, in an interval of that length by what was counted
// in it; 0 where that was not counted, or the signal asks for none. Where pressure is
// in operations, bytes count as they do there.
func (s *Signal) Rate(counted *Extras, interval time.Duration) float64 {
	if s.LeastRate == 0 || interval <= 0 {
		return 0
	}
	n, ok := counted.Get(s.Activity)
	if !ok {
		return 0
	}
	if s.Load.PerOp > 0 {
		bytes, _ := counted.Get(s.Load.Bytes)
		n += bytes / s.Load.PerOp
	}
	return n / interval.Seconds()
}

// PressureOf is how much a task used of what its neighbours may lack, in the unit
// of Pressure, by its CPU usage (CPU-s/s) and by what was counted in an interval of
// that length.
func (s *Signal) PressureOf(cpu float64, counted *Extras, interval time.Duration) float64 {
	if s.Load.PerOp == 0 {
		return cpu
	}
	if interval <= 0 {
		return 0
	}
	ops, ok := counted.Get(s.Load.Offered)
	if !ok {
		ops, _ = counted.Get(s.Load.Ops)
	}
	bytes, _ := counted.Get(s.Load.Bytes)
	return (ops + bytes/s.Load.PerOp) / interval.Seconds()
}

// Sane reports whether a cost is inside the signal's range.
func (s *Signal) Sane(cost float64) bool { return cost >= s.Min && cost <= s.Max }
