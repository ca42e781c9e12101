package sim

import (
	"math"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// task is one task of a machine and its state.
type task struct {
	id   sample.Task
	wave wave
	// weight is what a unit of its usage asks of the channel, as a share of
	// the channel's capacity; 0 where it does not share it with the victim.
	weight float64
	// sensitivity is by how much, as a ratio, its cost rises with one unit of
	// the channel's stress above what is usual.
	sensitivity float64
	// open: a request that costs more still comes, so usage rises with cost.
	open   bool
	here   bool // in the same cache domain as the victim
	mean   float64
	spread float64 // standard deviation ÷ mean of its job
	spec   spec.Spec
	limit  float64 // the paper's threshold, for the truth

	offset, drift float64 // of the noise, in units of spread
	phase         float64 // what it does now costs so many times the usual
	work          float64 // and it does so many times as much
	flags         sample.Flags
	cold          int // minutes it stays dear after a start
	capped        float64
	trial         bool // it is capped to find out
	lame          int  // minutes it holds back after a cap
	caps          int  // so far
	guilty        bool
	gone          bool

	// of this minute
	wanted, demand, usage, expected, cost float64 // wanted is the demand without a cap
}

// noise is this minute's, in units of the job's standard deviation.
func (m *machine) noise(t *task) float64 {
	t.drift = driftStay*t.drift + math.Sqrt((1-driftStay*driftStay)*shareDrift)*m.rng.NormFloat64()
	return t.offset + t.drift + math.Sqrt(shareWhite)*m.shape.draw(m.rng)
}

// past is what is remembered of a minute, for the question whether an accused
// really hurt a victim.
type past struct {
	load             float64
	demand, expected []float64 // of each task
}

// memory is how many minutes the truth looks back: the paper's window.
const memory = 10

// hurts reports whether a task raised another's expected cost in one of the
// last minutes, noise left out, by at least what matters: the signal's least
// effect. An innocent that happens to press on the channel is guilty too if it
// makes at least a quarter of the damage.
func (m *machine) hurts(accused, victim int) bool {
	a, v := &m.tasks[accused], &m.tasks[victim]
	if a.weight == 0 || v.sensitivity == 0 || !v.here || accused == victim {
		return false
	}
	for i := 1; i <= min(m.minute, memory); i++ { // the minute itself is over
		p := &m.past[(m.minute-i)%memory]
		if accused >= len(p.demand) {
			continue
		}
		with := m.stress(p.load)
		without := m.stress(p.load - a.weight*p.demand[accused])
		effect := v.mean * v.sensitivity * (with - without)
		if effect < m.least(v) {
			continue
		}
		if a.guilty || effect >= (p.expected[victim]-v.mean)/4 {
			return true
		}
	}
	return false
}

// least is how much more a task must pay for it to matter.
func (m *machine) least(t *task) float64 {
	return max(m.signal.EffectRel*t.mean, m.signal.EffectAbs)
}
