package spec

import (
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// HourMS is the length of an hour. All samples of an hour, UTC, have the same age and so
// the same weight. The paper weighs by days.
const HourMS = 3_600_000

// HourOf is the beginning of the hour that a time is in.
func HourOf(at sample.Millis) sample.Millis { return at - at%HourMS }

// weight is the weight in one hour of a sample of another hour, by AgeWeight. It is above
// 1 if the sample's hour is the later one.
func (p Params) weight(hour, in sample.Millis) float64 {
	return math.Pow(p.AgeWeight, float64(in-hour)/(24*HourMS))
}

// Hour summarises the samples that a spec learns from (Accepts) of one key and one hour. Nothing in it
// is weighted by age, so it stays unchanged as it gets older.
type Hour struct {
	Start    sample.Millis
	Newest   sample.Millis // newest sample
	Machines []MachineHour // in any order, each at least once
	// Usage is the cost by level of the tasks' CPU usage (UsageBin), of all machines.
	Usage  [UsageBins]stat.Moments
	Sketch stat.Sketch // of the costs, each sample of weight 1
}

// MachineHour is the part of an Hour that one machine reported.
type MachineHour struct {
	Machine uint64        // HashMachine
	Cost    stat.Moments  // each sample of weight 1
	Self    stat.Moments  // Filter.Self of the same samples, as far as it is known
	CPU     float64       // mean usage, CPU-s/s
	Tasks   []TaskSamples // in any order, each at least once
}

// TaskSamples is how many samples a task gave.
type TaskSamples struct {
	Task uint64 // HashTask
	N    int64
}

// HashTask distinguishes the tasks of a job: FNV-1a, 64 bits, over machine, a zero byte
// and name. A collision only makes a spec ready later.
func HashTask(machine, task string) uint64 { return hashTaskOf(HashMachine(machine), task) }

// hashTaskOf is HashTask on the machine with the given hash.
func hashTaskOf(machine uint64, task string) uint64 {
	h := machine * 1099511628211 // a zero byte
	for i := range len(task) {
		h = (h ^ uint64(task[i])) * 1099511628211
	}
	return h
}

// HashMachine distinguishes machines: FNV-1a, 64 bits.
func HashMachine(machine string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(machine) {
		h = (h ^ uint64(machine[i])) * 1099511628211
	}
	return h
}

// UsageBins is the number of levels of CPU usage by which a cost is split: below 0.25
// CPU-s/s, then doubling, and from 16 on.
const UsageBins = 8

// UsageBin is the level of a usage in CPU-s/s.
func UsageBin(cpu float32) int {
	const quarter = 125 // exponent of 0.25 in a float32
	return min(max(int(math.Float32bits(cpu)>>23)-quarter+1, 0), UsageBins-1)
}

// usageFrom is where a level begins, CPU-s/s.
func usageFrom(bin int) float64 {
	if bin == 0 {
		return 0
	}
	return math.Ldexp(1, bin-3)
}

// Filter is what a sample of one signal must satisfy to teach what is normal: detection
// would judge it (detect.Observe), and it was not taken under a cap.
type Filter struct {
	// Costs outside of Least to Most are not measurements. A task with less usage than
	// LeastCPU hardly ran.
	Least, Most, LeastCPU float64
	// SelfApart: the cost is sample.WaitOther ÷ CPU time, and sample.WaitSelf ÷ CPU time is the
	// part that the task spent on itself.
	SelfApart bool
}

// ExcludedFlags are the flags of samples that do not teach.
const ExcludedFlags = sample.Capped | sample.Split

// Shared reports whether tasks on several machines can be of a job of that name. The name of
// a single container, pod or virtual machine cannot: it holds an identifier, 32 hexadecimal
// digits or more in a row, or a UUID. Every such name would be a job for ever, with the
// samples of one task. Its cost is learnt on its own machine only (History).
func Shared(job sample.JobName) bool {
	run, groups := 0, 0 // hexadecimal digits in a row; complete groups of a UUID before them
	for i := range len(job) {
		c := job[i]
		switch {
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F':
			run++
			if run >= 32 || groups == 4 && run == 12 {
				return false
			}
			continue
		case c != '-' && c != '_':
			groups = 0
		case groups > 0 && groups < 4 && run == 4:
			groups++
		case run >= 8:
			groups = 1
		default:
			groups = 0
		}
		run = 0
	}
	return true
}

// InstancePattern is a regular expression (RE2, Java) that matches within the names for which
// Shared is false.
const InstancePattern = "[0-9a-fA-F]{32}|[0-9a-fA-F]{8}([-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12}"

// FilterOf is the rule of a signal; false if the signal is not known. If its activity is
// not CPU usage, a sample does not contain the activity, and any usage is accepted.
func FilterOf(n sample.SignalName) (Filter, bool) {
	s, ok := sample.LookupSignal(n)
	r := Filter{s.Min, s.Max, s.LeastCPU, s.Domain == sample.SharedCPU}
	if r.LeastCPU == math.MaxFloat64 {
		r.LeastCPU = math.Inf(-1)
	}
	return r, ok
}

// Accepts reports whether a sample of the rule's signal may enter a spec, as far as the
// sample itself shows. It may still be of an incident. An infinite usage is none: in a sum it
// would hide those of all other samples.
func (r Filter) Accepts(flags sample.Flags, cpu, cost float32) bool {
	c, usage := float64(cost), float64(cpu)
	return flags&ExcludedFlags == 0 && c >= r.Least && c <= r.Most && usage >= r.LeastCPU && math.Abs(usage) <= math.MaxFloat32
}

// Self returns what a sample of the filter's signal cost by the task itself, in the cost's unit,
// from its extras (NaN if they are absent). A sample does not contain the CPU time by which its
// cost was divided: that is waitOther ÷ cost. NaN if the part is not known, or is no
// measurement.
func (r Filter) Self(cost float32, waitOther, waitSelf float64) float64 {
	switch self := waitSelf * float64(cost) / waitOther; {
	case !r.SelfApart:
	case waitSelf == 0:
		return 0
	case waitSelf > 0 && waitOther > 0 && cost > 0 && self <= r.Most:
		return self
	}
	return math.NaN()
}
