package spec

import (
	"math"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/stat"
)

// HourMS is the length of an hour. All samples of an hour, UTC, have the same
// age and so the same weight: the paper weighs by days.
const HourMS = 3_600_000

// HourOf is the beginning of the hour that a time is in.
func HourOf(at sample.Millis) sample.Millis { return at - at%HourMS }

// weight is what AgeWeight leaves of a sample of one hour in another. It is
// above 1 where the sample's is the later.
func (p Params) weight(hour, in sample.Millis) float64 {
	return math.Pow(p.AgeWeight, float64(in-hour)/(24*HourMS))
}

// Hour is what the samples that teach (Teaches) of one key and one hour come to.
// Nothing in it is weighted by age, so it stays as it is while it gets older.
type Hour struct {
	Start  sample.Millis
	Cost   stat.Moments  // each sample of weight 1
	CPU    float64       // mean usage, CPU-s/s
	Newest sample.Millis // sample
	Tasks  []TaskSamples // in any order, each at least once
	// Usage is Cost by the tasks' CPU usage (UsageBin).
	Usage  [UsageBins]stat.Moments
	Sketch stat.Sketch // of the costs, each sample of weight 1
}

// TaskSamples is how many samples a task gave.
type TaskSamples struct {
	Task uint64 // HashTask
	N    int64
}

// HashTask tells tasks of a job apart: FNV-1a, 64 bits, over machine, a zero
// byte and name. Two that are taken for one only make a spec ready later.
func HashTask(machine, task string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(machine) {
		h = (h ^ uint64(machine[i])) * 1099511628211
	}
	h *= 1099511628211 // a zero byte
	for i := range len(task) {
		h = (h ^ uint64(task[i])) * 1099511628211
	}
	return h
}

// UsageBins is how many levels of CPU usage a cost is told apart by: below 0.25
// CPU-s/s, then doubling, and from 16 on.
const UsageBins = 8

// UsageBin is the level of a usage in CPU-s/s.
func UsageBin(cpu float32) int {
	const quarter = 125 // exponent of 0.25 in a float32
	return min(max(int(math.Float32bits(cpu)>>23)-quarter+1, 0), UsageBins-1)
}

// UsageFrom is where a level begins, CPU-s/s.
func UsageFrom(bin int) float64 {
	if bin == 0 {
		return 0
	}
	return math.Ldexp(1, bin-3)
}

// Rule is what a sample of one signal must be like to teach what is normal:
// what detection would judge (detect.Observe), and not under a cap.
type Rule struct {
	// Costs outside of Least to Most are no measurement; a task with less usage
	// than LeastCPU hardly ran.
	Least, Most, LeastCPU float64
}

// Unfit are the flags of samples that do not teach.
const Unfit = sample.Capped | sample.Split

// RuleOf is a signal's; false for one that is not known. Where the activity is
// another than CPU usage a sample does not tell, and any usage will do.
func RuleOf(n sample.SignalName) (Rule, bool) {
	s, ok := sample.LookupSignal(n)
	r := Rule{s.Min, s.Max, s.LeastCPU}
	if r.LeastCPU == math.MaxFloat64 {
		r.LeastCPU = math.Inf(-1)
	}
	return r, ok
}

// Teaches reports whether a sample of the rule's signal may enter a spec, as far
// as can be seen by itself: it may still be of an incident.
func (r Rule) Teaches(flags sample.Flags, cpu, cost float32) bool {
	c := float64(cost)
	return flags&Unfit == 0 && c >= r.Least && c <= r.Most && float64(cpu) >= r.LeastCPU
}
