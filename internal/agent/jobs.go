package agent

import (
	"cmp"
	"maps"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// maxJobs bounds the number of series that grows with the tasks on the machine: only
// the jobs that use most CPU have their own series.
const maxJobs = 100

// job is what a job's tasks did in the newest window.
type job struct {
	name  sample.JobName
	tasks int
	cpu   float64
	stall mean // of the tasks whose pressure is known
	costs map[sample.SignalName]mean
}

type mean struct {
	sum float64
	n   int
}

func (m mean) with(x float64) mean { return mean{m.sum + x, m.n + 1} }
func (m mean) value() float64      { return m.sum / float64(m.n) }

type specState struct {
	signal sample.SignalName
	state  spec.State
}

// jobs returns the jobs that use most CPU, highest first, and how many specs of all jobs
// are in each state. A job has one for each signal and variant.
func (v *view) jobs() (top []*job, specs map[specState]int) {
	byName, seen := map[sample.JobName]*job{}, map[spec.Key]bool{}
	specs = map[specState]int{}
	for _, t := range v.tasks.order {
		if t.ended || !t.measured {
			continue
		}
		j := byName[t.Job]
		if j == nil {
			j = &job{name: t.Job, costs: map[sample.SignalName]mean{}}
			byName[t.Job] = j
		}
		j.tasks++
		j.cpu += t.cpu
		if t.pressure.said {
			j.stall = j.stall.with(t.pressure.share)
		}
		for i := range t.judged {
			s := &t.judged[i]
			if s.cost == s.cost {
				j.costs[s.signal] = j.costs[s.signal].with(s.cost)
			}
			if s.spec != nil && s.spec.Job != "" && !seen[s.spec.Key] { // else the signal did not count the task
				seen[s.spec.Key] = true
				specs[specState{s.signal, s.spec.State}]++
			}
		}
	}
	top = slices.SortedFunc(maps.Values(byName), func(x, y *job) int {
		return cmp.Or(cmp.Compare(y.cpu, x.cpu), cmp.Compare(x.name, y.name))
	})
	return top[:min(len(top), maxJobs)], specs
}
