package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Specs are the normal costs of a fleet's jobs, learnt by spec.History from a day of calm
// samples of many tasks each, as a fleet's server learns them. They are read only, so that
// machines can be played in parallel.
type Specs map[specKey]specOf

type specKey struct {
	job    sample.JobName
	signal sample.SignalName
}

// specOf is a spec and the true values it was learnt from.
type specOf struct {
	spec.Spec
	mean, stddev float64
}

// Signals other than CPI have no published distribution: the cost of a wait, an operation
// or a packet and its variation are assumed.
func truth(j Job, sig sample.Signal) (mean, stddev float64) {
	switch sig.Name {
	case sample.CPI:
		return j.Mean, j.StdDev
	case sample.RunQ:
		return 0.12, 0.036
	}
	return 1, 0.15
}

const (
	learners = 60  // tasks that train a spec; assumed
	lessons  = 144 // samples of each: one every ten minutes for a day
)

// learn learns the specs of all jobs and signals.
func learn(seed uint64, shape *shape) Specs {
	s := Specs{}
	for _, c := range Channels() {
		sig := c.Signal()
		for _, j := range append(served(), others()...) {
			k := specKey{j.Name, sig.Name}
			if _, known := s[k]; !known {
				s[k] = learnOne(j, sig, shape, rand.New(rand.NewPCG(seed, uint64(len(s)))))
			}
		}
	}
	return s
}

func learnOne(j Job, sig sample.Signal, shape *shape, rng *rand.Rand) specOf {
	mean, stddev := truth(j, sig)
	m := machine{rng: rng, shape: shape}
	h := spec.NewHistory(spec.Paper())
	key := spec.Key{Job: j.Name, Platform: "sim", Signal: sig.Name}
	var at sample.Millis
	for i := range learners {
		t := task{mean: mean, spread: stddev / mean,
			offset: math.Sqrt(shareTask) * rng.NormFloat64(), drift: math.Sqrt(shareDrift) * rng.NormFloat64()}
		for n := range lessons {
			m.minute = n * 10
			at = sample.Millis(n) * sample.Millis((10 * time.Minute).Milliseconds())
			for range 9 { // the minutes between two samples
				t.drift = driftStay*t.drift + math.Sqrt((1-driftStay*driftStay)*shareDrift)*rng.NormFloat64()
			}
			cost := mean * m.wander() * (1 + t.spread*m.noise(&t))
			h.Add(key, sample.TaskKey{Inode: uint64(i + 1)}, at, 1, max(cost, sig.Min), 0)
		}
	}
	learnt, _ := h.Lookup(key, at)
	return specOf{learnt, mean, stddev}
}

func (s Specs) of(j Job, sig sample.Signal) specOf {
	return s[specKey{cmp.Or(j.Like, j.Name), sig.Name}]
}
