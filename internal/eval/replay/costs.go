package replay

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Costs are the costs of a job's samples, for their distribution.
type Costs struct {
	Job    sample.JobName
	Signal sample.SignalName
	Values []float64 // all of them, or a uniform random sample
	Seen   int       // number of all

	kept []markedCost // of which Values will be
	most uint64       // a sample with a higher mark is not kept
}

// markedCost is the cost of a sample, and a random number that depends only on which sample it is.
type markedCost struct {
	mark uint64
	cost float64
}

const (
	// costsKept bounds a job's costs in memory, costJobs the jobs.
	costsKept = 1 << 13
	costJobs  = 500
)

type costKey struct {
	job    sample.JobName
	signal sample.SignalName
}

// costs collects them: those with the lowest marks, up to costsKept. That is a uniform sample, and the
// same one in whatever order and in how many parts the samples come.
type costs map[costKey]*Costs

// find returns the Costs of a job; nil if there are costJobs others already.
func (c costs) find(job sample.JobName, signal sample.SignalName) *Costs {
	k := costKey{job, signal}
	j := c[k]
	if j == nil && len(c) < costJobs {
		j = &Costs{Job: job, Signal: signal, most: 1<<64 - 1}
		c[k] = j
	}
	return j
}

// markOf is the mark of a task's sample: its hash, mixed as in MurmurHash3.
func markOf(machine string, task sample.TaskName, at sample.Millis) uint64 {
	x := spec.HashTask(machine, string(task)) + uint64(at)*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// add adds the cost of the sample with a mark.
func (j *Costs) add(mark uint64, cost float64) {
	if j.Seen++; mark > j.most {
		return
	}
	if j.kept = append(j.kept, markedCost{mark, cost}); len(j.kept) > costsKept*5/4 {
		j.choose()
	}
}

// choose sorts the costs by their marks, and drops those that are too many.
func (j *Costs) choose() {
	slices.SortFunc(j.kept, func(a, b markedCost) int { return cmp.Or(cmp.Compare(a.mark, b.mark), cmp.Compare(a.cost, b.cost)) })
	if len(j.kept) >= costsKept {
		j.kept = j.kept[:costsKept]
		j.most = j.kept[costsKept-1].mark
	}
}

// listCosts returns all, the jobs with most samples first.
func listCosts(of costs) []Costs {
	var all []Costs
	for _, j := range of {
		j.choose()
		j.Values = make([]float64, 0, len(j.kept))
		for _, x := range j.kept {
			j.Values = append(j.Values, x.cost)
		}
		all = append(all, *j)
	}
	slices.SortFunc(all, func(a, b Costs) int {
		return cmp.Or(-cmp.Compare(a.Seen, b.Seen), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Signal, b.Signal))
	})
	return all
}

// mergeCosts merges the costs collected on other machines.
func mergeCosts(a, b []Costs) []Costs {
	at := costs{}
	for _, list := range [][]Costs{a, b} {
		for i := range list {
			c := &list[i]
			if have := at[costKey{c.Job, c.Signal}]; have != nil {
				have.kept, have.Seen = append(slices.Clip(have.kept), c.kept...), have.Seen+c.Seen
			} else {
				at[costKey{c.Job, c.Signal}] = c
			}
		}
	}
	return listCosts(at)
}
