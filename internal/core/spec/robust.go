package spec

import (
	"cmp"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// machineSum is what one machine's samples of a key say, weighted as of one hour.
type machineSum struct {
	id          uint64 // HashMachine
	cost, self  stat.Moments
	cpu         float64 // mean usage, CPU-s/s
	tasks, full int     // its tasks; those of them with enough samples
}

// counts is what the state of a spec depends on.
type counts struct {
	machines, fullMachines int // fullMachines: with a task of enough samples
	tasks, full            int // full: with enough samples
}

// add adds samples of the same machine with w times their weight.
func (m *machineSum) add(cost, self stat.Moments, cpu, w float64) {
	merge(&m.self, self, w)
	cost.Decay(w)
	if cost.W <= 0 {
		return
	}
	m.cpu += (cpu - m.cpu) * cost.W / (m.cost.W + cost.W)
	m.cost.Merge(cost)
}

// The bounds of a machine's influence on a spec. Any machine's root may lie, so the spec of a
// job has to stay what it is if some of its machines report anything at all. Package dialect
// has the same in SQL.
const (
	// Votes is the number of machines from which on one may be left out: of two it cannot be
	// told which one lies.
	Votes = 3
	// OutlyingPart: one in so many of a job's machines may be left out, but at least one. By the
	// paper's threshold, mean + 2 σ, a share p of tasks with another cost consists of outliers
	// anyway if p < 1/5: a two-point distribution has σ = distance · √(p(1−p)). So leaving them
	// out accuses no task that would not have been accused.
	OutlyingPart = 5
	// Fence is how far a machine's mean may be from the median of all, in units of the
	// deviation between machines and that within them.
	Fence = 3
	// MADSigma makes a median deviation comparable to σ, for a normal distribution.
	MADSigma = 1.4826
)

// robustSum is what a job's machines say together.
type robustSum struct {
	cost stat.Moments
	self stat.Moments // robust in itself, whatever the costs are
	cpu  float64
	counts
	out []uint64 // machines that are left out
}

// robust merges the machines of a key, and what their tasks spent on themselves in the same way.
func robust(signal sample.SignalName, all []machineSum) robustSum {
	r := robustCost(signal, all)
	var self []machineSum
	for _, m := range all {
		if m.self.W > 0 {
			self = append(self, machineSum{id: m.id, cost: m.self, full: m.full})
		}
	}
	r.self = robustCost(signal, self).cost
	return r
}

// robustCost merges the costs of machines. No machine weighs more than the median machine, however
// many tasks and samples it reports; and of the machines whose mean is far from the median of
// all, the farthest are left out, a fifth of all at most. Only machines with a task of enough
// samples have a vote on what is far.
func robustCost(signal sample.SignalName, all []machineSum) (r robustSum) {
	var weights, means, within []float64
	for i := range all {
		if m := &all[i]; m.full > 0 {
			weights, means, within = append(weights, m.cost.W), append(means, m.cost.Mean), append(within, m.cost.StdDev())
		}
	}
	n, most := len(means), math.Inf(1)
	if n > 0 {
		slices.Sort(weights)
		most = weights[(n-1)/2]
	}
	var out map[uint64]bool
	if n >= Votes {
		middle := median(means)
		for i := range means {
			means[i] = math.Abs(means[i] - middle)
		}
		s, _ := sample.LookupSignal(signal)
		limit := max(Fence*(MADSigma*median(means)+median(within)), s.EffectAbs, s.EffectRel*middle)
		out = outlying(all, middle, limit, max(1, n/OutlyingPart))
	}
	for i := range all {
		m := &all[i]
		if out[m.id] {
			r.out = append(r.out, m.id)
			continue
		}
		c := m.cost
		c.Decay(min(1, most/c.W))
		r.cpu += (m.cpu - r.cpu) * c.W / (r.cost.W + c.W)
		r.cost.Merge(c)
		r.machines++
		r.tasks, r.full = r.tasks+m.tasks, r.full+m.full
		if m.full > 0 {
			r.fullMachines++
		}
	}
	return r
}

// outlying returns the machines beyond the limit: of those with a vote only the farthest, at
// most most. Of machines at the same distance all are left out or none.
func outlying(all []machineSum, middle, limit float64, most int) map[uint64]bool {
	type far struct {
		id   uint64
		away float64
	}
	out := map[uint64]bool{}
	var voters []far
	for i := range all {
		m := &all[i]
		away := math.Abs(m.cost.Mean - middle)
		switch {
		case away <= limit:
		case m.full == 0:
			out[m.id] = true
		default:
			voters = append(voters, far{m.id, away})
		}
	}
	slices.SortFunc(voters, func(a, b far) int { return cmp.Or(cmp.Compare(b.away, a.away), cmp.Compare(a.id, b.id)) })
	for i := 0; i < len(voters); {
		j := i
		for j < len(voters) && voters[j].away == voters[i].away {
			j++
		}
		if j > most {
			break
		}
		for ; i < j; i++ {
			out[voters[i].id] = true
		}
	}
	return out
}

// median sorts and returns the middle, between the two middle ones of an even number.
func median(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	return all[(n-1)/2] + (all[n/2]-all[(n-1)/2])/2
}
