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
	// Probe and Steal are measured for the whole machine and for no task.
	Probe SignalName = "probe"
	Steal SignalName = "steal"
)

// OfMachine reports whether a signal is measured for the machine and for no task.
func (n SignalName) OfMachine() bool { return n == Probe || n == Steal }

// Domain says what a suspect must share with a victim to be able to affect it.
type Domain string

const (
	// SharedCPU: they can run on the same CPU.
	SharedCPU Domain = "cpu"
	// SharedCache: they can run under the same last-level cache or on the same memory node.
	SharedCache Domain = "cache"
	// SharedDevice: they used the same disk.
	SharedDevice Domain = "device"
	// SharedInterface: they sent through the same network interface.
	SharedInterface Domain = "interface"
	// OtherVM: the antagonist is in another virtual machine. No task is ever a suspect.
	OtherVM Domain = "host"
)

// OfCPUs reports whether the CPUs that tasks may run on determine what they share, and
// their CPU usage how much of it they use.
func (d Domain) OfCPUs() bool { return d == SharedCPU || d == SharedCache }

// Signal describes a cost signal: resource spent per unit of work; higher is worse.
// Detection knows only these fields of a signal.
type Signal struct {
	Name SignalName
	Unit string
	Cost string // in words, for people
	// Pressure is the unit of the usage by which suspects are ranked.
	Pressure string
	// Domain is what a suspect must share with the victim.
	Domain Domain
	// LeastCPU and LeastRate: a victim's sample counts only if the task used at least LeastCPU CPU-s/s,
	// or was active at least LeastRate times a second (if LeastRate is not 0), or was starved (Active).
	LeastCPU, LeastRate float64
	// Activity is the extra that is counted for LeastRate.
	Activity Extra
	// Load defines the pressure if it is not CPU usage.
	Load Load
	// PerWork: the cost is Pressure per unit of work, so a task's work is its pressure ÷
	// its cost. Otherwise its pressure is the measure of its work.
	PerWork bool
	// OwnWork: the task itself, or its operator, defines the unit of work. It does not
	// depend on the other tasks on the machine.
	OwnWork bool
	// SelfReported: the task can make its cost what it likes, without suffering: it counts
	// the work, or its work is the calls that it makes. It is believed in what it costs
	// other tasks only if a Witness agrees (plan: witness.go).
	SelfReported bool
	// Witness: the machine measures it, for CPUs or what they share. A task raises it only by really
	// being slower, though it may choose to be (docs/security.md, what is left).
	Witness bool
	// LeastPressure (in the unit of Pressure) is what a suspect must have used in the bad
	// intervals (switch "least-pressure"). It is 0 where Pressure is CPU usage: for that
	// detection has a parameter.
	LeastPressure float64
	// EffectAbs (in Unit) and EffectRel (share of the mean): a cost matters only if it is
	// at least this far above the mean (switch "least-effect").
	EffectAbs, EffectRel float64
	// Min and Max bound plausible measurements. CPI's upper bound is the cost of a pointer chase
	// through remote memory (about 500 ns for each load of two or three instructions). 60 was measured
	// with a full cache: a bound of 20 discarded exactly the samples that show contention.
	Min, Max float64
}

// Load describes a pressure in operations a second. Each operation counts as one, and
// PerOp bytes count as one more.
type Load struct {
	Ops, Offered Extra   // operations; Offered replaces Ops if it was measured
	Bytes        Extra   // bytes of those operations
	PerOp        float64 // bytes; 0: the pressure is CPU usage
}

// RequestBytes is the number of bytes that weigh as much as one more request in the
// pressure of IO: a disk spends time on requests and on bytes (as in the kernel's own
// linear model of a disk, block/blk-iocost.c).
const RequestBytes = 64 << 10

// PacketBytes is the same for packets in the pressure of Net. A shaped link spends time on bytes, and a
// full packet of a usual link has this many; a slow receiver spends time on packets.
const PacketBytes = 1500

// CPUPerSecond is the unit of CPU usage: seconds of CPU time per second.
const CPUPerSecond = "CPU-s/s"

var signals = []Signal{
	{Name: CPI, Unit: "cycles/instruction", Cost: "cycles ÷ instructions", Pressure: CPUPerSecond, Domain: SharedCache, PerWork: true,
		Witness: true, LeastCPU: 0.25, EffectRel: 0.05, Min: 0.1, Max: 1000},
	{Name: CPT, Unit: "CPU-s/transaction", Cost: "CPU time ÷ transactions", Pressure: CPUPerSecond, Domain: SharedCache, PerWork: true,
		OwnWork: true, SelfReported: true, LeastCPU: 0.25, EffectRel: 0.05, Min: 1e-9, Max: 3600},
	{Name: CPS, Unit: "CPU-s/call", Cost: "CPU time ÷ system calls", Pressure: CPUPerSecond, Domain: SharedCache, PerWork: true,
		SelfReported: true, LeastCPU: 0.25, EffectRel: 0.05, Min: 1e-9, Max: 3600},
	{Name: RunQ, Unit: "s/CPU-s", Cost: "run-queue wait behind other tasks ÷ CPU time", Pressure: CPUPerSecond, Domain: SharedCPU,
		Witness: true, LeastCPU: 0.02, LeastRate: 20, Activity: Wakeups, EffectAbs: 0.05, EffectRel: 0.20, Min: 0, Max: 1e4},
	{Name: IO, Unit: "s/request", Cost: "time of requests to disks ÷ requests", Pressure: "(requests + 64 KiB)/s", Domain: SharedDevice,
		LeastPressure: 10, LeastCPU: math.MaxFloat64, LeastRate: 10, Activity: IOOps, Load: Load{IOOps, noExtra, IOBytes, RequestBytes},
		EffectRel: 0.20, Min: 0, Max: 3600},
	{Name: Net, Unit: "s/packet", Cost: "wait in interfaces' queues ÷ packets", Pressure: "(packets + 1500 B)/s", Domain: SharedInterface,
		LeastPressure: 100, LeastCPU: math.MaxFloat64, LeastRate: 100, Activity: NetPackets, Load: Load{NetPackets, NetQueued, NetBytes, PacketBytes},
		EffectAbs: 100e-6, EffectRel: 0.20, Min: 0, Max: 3600},
	{Name: Probe, Unit: "s/load", Cost: "time of the canary's loads ÷ loads", Pressure: CPUPerSecond, Domain: SharedCache,
		Witness: true, EffectRel: 0.10, Min: 1e-10, Max: 1e-3},
	{Name: Steal, Unit: "s/CPU-s", Cost: "stolen time ÷ CPU time", Pressure: "none", Domain: OtherVM,
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

// starved is the waiting time of a task's requests, or of its threads, in seconds a
// second, from which a sample says enough about the task, however few they are: a task
// that is hardly served does little for that reason.
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

// Rate is a task's activity, 1/s, in an interval of that length, from what was counted in
// it. It is 0 if that was not counted or the signal needs no rate. Where pressure is in
// operations, bytes count as they do there.
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

// PressureOf is how much a task used of the resource that it shares, in the unit of Pressure. It
// follows from its CPU usage (CPU-s/s) and from what was counted in an interval of that length.
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
