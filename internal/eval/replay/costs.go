package replay

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Costs are the costs of a job's samples, for their distribution.
type Costs struct {
	Job    sample.JobName
	Signal sample.SignalName
	Values []float64 // all of them, or a uniform random sample
	Seen   int       // number of all
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

// costs collects them: all up to costsKept, then each with the same probability (reservoir
// sampling, algorithm R; Vitter, 1985), from a fixed seed.
type costs struct {
	of   map[costKey]*Costs
	draw *rand.Rand
}

func newCosts() *costs {
	return &costs{map[costKey]*Costs{}, rand.New(rand.NewPCG(1, 1))}
}

// find returns the Costs of a job; nil if there are costJobs others already.
func (c *costs) find(job sample.JobName, signal sample.SignalName) *Costs {
	k := costKey{job, signal}
	j := c.of[k]
	if j == nil && len(c.of) < costJobs {
		j = &Costs{Job: job, Signal: signal}
		c.of[k] = j
	}
	return j
}

func (c *costs) add(j *Costs, v float64) {
	j.Seen++
	if len(j.Values) < costsKept {
		j.Values = append(j.Values, v)
	} else if i := c.draw.IntN(j.Seen); i < costsKept {
		j.Values[i] = v
	}
}

// listCosts returns all, the jobs with most samples first.
func listCosts(of map[costKey]*Costs) []Costs {
	var all []Costs
	for _, j := range of {
		all = append(all, *j)
	}
	slices.SortFunc(all, func(a, b Costs) int {
		return cmp.Or(-cmp.Compare(a.Seen, b.Seen), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Signal, b.Signal))
	})
	return all
}

// mergeCosts merges the costs collected on other machines.
func mergeCosts(a, b []Costs) []Costs {
	at := map[costKey]*Costs{}
	for _, list := range [][]Costs{a, b} {
		for i := range list {
			c := &list[i]
			if have := at[costKey{c.Job, c.Signal}]; have != nil {
				have.Values, have.Seen = append(slices.Clip(have.Values), c.Values...), have.Seen+c.Seen
			} else {
				at[costKey{c.Job, c.Signal}] = c
			}
		}
	}
	return listCosts(at)
}
