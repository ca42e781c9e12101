package agent

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// maxJobs bounds the number of series that grows with the tasks on the machine: only
// the jobs that use most CPU have their own series.
const maxJobs = 100

// jobs is the data of the newest window, by job.
type jobs struct {
	byName map[sample.JobName]*job
	all    []*job
	top    []*job // the jobs that use most CPU, highest first
	states []specCount
}

type job struct {
	name  string
	tasks int
	cpu   float64
	// of the tasks whose pressure is known
	stall  float64 // sum
	stalls int
	costs  []jobCost // by signal
	specs  []jobSpec
}

type jobCost struct {
	signal sample.SignalName
	sum    float64
	n      int
}

// jobSpec is the state of one of the job's specs: there is one for each signal and each
// variant of counting it.
type jobSpec struct {
	signal  sample.SignalName
	variant string
	state   spec.State
}

type specCount struct {
	signal sample.SignalName
	state  spec.State
	n      int
}

// of returns the job with a name; the task keeps the pointer.
func (js *jobs) of(name sample.JobName) *job {
	j := js.byName[name]
	if j == nil {
		if js.byName == nil {
			js.byName = map[sample.JobName]*job{}
		}
		j = &job{name: string(name)}
		js.byName[name], js.all = j, append(js.all, j)
	}
	return j
}

// begin begins a window.
func (js *jobs) begin() {
	for _, j := range js.all {
		*j = job{name: j.name, costs: j.costs[:0], specs: j.specs[:0]}
	}
}

// add adds what a task of the job did in the window; stalled is the share of it in which
// the task waited for a CPU, if known.
func (j *job) add(cpu, stalled float64, known bool, views []api.SignalView) {
	j.tasks++
	j.cpu += cpu
	if known {
		j.stall += stalled
		j.stalls++
	}
	for i := range views {
		v := &views[i]
		if c := float64(v.Cost); c == c {
			j.addCost(v.Signal, c)
		}
		if v.Spec.Key.Job != "" { // else the signal did not count the task
			j.addSpec(jobSpec{v.Signal, v.Spec.Variant, v.Spec.State})
		}
	}
}

// end ends a window: jobs without tasks are removed, the others are sorted, and their specs
// are counted.
func (js *jobs) end() {
	js.all = slices.DeleteFunc(js.all, func(j *job) bool {
		if j.tasks == 0 {
			delete(js.byName, sample.JobName(j.name))
		}
		return j.tasks == 0
	})
	slices.SortFunc(js.all, func(x, y *job) int {
		return cmp.Or(cmp.Compare(y.cpu, x.cpu), cmp.Compare(x.name, y.name))
	})
	js.top = js.all[:min(len(js.all), maxJobs)]
	js.states = js.states[:0]
	for _, j := range js.all {
	next:
		for _, s := range j.specs {
			for i := range js.states {
				if c := &js.states[i]; c.signal == s.signal && c.state == s.state {
					c.n++
					continue next
				}
			}
			js.states = append(js.states, specCount{s.signal, s.state, 1})
		}
	}
}

func (j *job) addCost(signal sample.SignalName, cost float64) {
	for i := range j.costs {
		if c := &j.costs[i]; c.signal == signal {
			c.sum += cost
			c.n++
			return
		}
	}
	j.costs = append(j.costs, jobCost{signal, cost, 1})
}

func (j *job) addSpec(s jobSpec) {
	for _, o := range j.specs {
		if o.signal == s.signal && o.variant == s.variant {
			return
		}
	}
	j.specs = append(j.specs, s)
}
