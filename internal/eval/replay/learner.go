package replay

import (
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Learner computes specs from a whole recording, including its incidents: the paper's plain
// method for a recording that is too short to learn from first.
type Learner struct {
	options *Options
	cost    map[spec.Key]*stat.Moments
	cpu     map[spec.Key]*stat.Moments
}

// NewLearner returns a Learner without samples.
func NewLearner(o *Options) *Learner {
	return &Learner{options: o, cost: map[spec.Key]*stat.Moments{}, cpu: map[spec.Key]*stat.Moments{}}
}

// Add adds a sample, if detection would judge it.
func (l *Learner) Add(s *sample.Sample) {
	sig, ok := l.options.signal(s.Signal)
	cost := float64(s.Cost)
	if !ok || !sig.Active(float64(s.CPU), sig.Rate(&s.Extras, l.options.Sampling), cost) || !sig.Sane(cost) || s.Flags&(sample.Capped|sample.Split) != 0 {
		return
	}
	k := l.options.key(s)
	if l.cost[k] == nil {
		l.cost[k], l.cpu[k] = &stat.Moments{}, &stat.Moments{}
	}
	l.cost[k].Add(cost, 1)
	l.cpu[k].Add(float64(s.CPU), 1)
}

// Specs returns the learnt specs; a spec requires at least least samples.
func (l *Learner) Specs(least int) map[spec.Key]spec.Spec {
	specs := map[spec.Key]spec.Spec{}
	for k, cost := range l.cost {
		if cost.N >= int64(least) {
			specs[k] = spec.Spec{Key: k, State: spec.Ready, Own: true, Samples: cost.N, Tasks: 1, CPUMean: l.cpu[k].Mean,
				Mean: cost.Mean, StdDev: cost.StdDev()}
		}
	}
	return specs
}
