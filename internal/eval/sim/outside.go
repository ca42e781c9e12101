package sim

import (
	"math/rand/v2"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Policy returns plan.Paper with additional limits for antagonists on a disk or an
// interface, as strict as the paper's are for CPU time: without them no task is capped or
// tried there. The agent's default is the same for requests to disks; its default for sent
// traffic is some 700 of the model's packets a second.
func Policy() plan.Policy {
	p := plan.Paper()
	p.IO = plan.IORate{Ops: uint64(strict * IO.Signal().LeastRate)}
	p.Net = uint64(strict * Net.Signal().LeastRate * packet)
	return p
}

const (
	strict = 2    // multiple of the least rate at which a task's samples count
	packet = 1500 // bytes
)

// limitOf returns the limit that an action sets, in the unit of the task's pressure.
func limitOf(a *plan.Action) float64 {
	switch {
	case a.IO.Ops > 0:
		return float64(a.IO.Ops)
	case a.Net > 0:
		return float64(a.Net) / packet
	}
	return a.Rate
}

// outside is the load outside any task of a machine. It has its own random source, so that
// a case is the same with and without it.
type outside struct {
	rng     *rand.Rand
	usual   float64 // CPU-s/s
	subject pipeline.Subject
	extras  sample.Extras
}

func newOutside(m *machine, seed uint64) *outside {
	return &outside{rng: rand.New(rand.NewPCG(seed, 1)), usual: 0.005 * float64(m.platform.CPUs), subject: pipeline.Subject{Task: detect.Outside()}}
}

// usage returns its usage in the minute just played. If CPU time is contended for, an
// antagonist that cannot be seen uses CPU time here: as much as a visible one does.
func (o *outside) usage(m *machine) float64 {
	u := o.usual * (1 + 0.2*o.rng.NormFloat64())
	if m.scenario.Channel == CPU && m.extra > 0 {
		u += 0.42 * float64(m.platform.CPUs)
	}
	return max(u, 0)
}
