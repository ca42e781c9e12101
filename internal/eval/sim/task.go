package sim

import (
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// task is one task of a machine and its state.
type task struct {
	id   sample.Task
	wave wave
	// weight is the load of a unit of its usage on the channel, as a share of the channel's
	// capacity; 0 if it does not share it with the victim.
	weight float64
	// sensitivity is the relative increase of its cost for one unit of the channel's stress
	// above the usual one.
	sensitivity float64
	// openLoop: requests arrive independently of their cost, so usage rises with cost.
	openLoop    bool
	sharesCache bool // in the same cache domain as the victim
	mean        float64
	spread      float64 // standard deviation ÷ mean of its job
	spec        spec.Spec
	threshold   float64 // the paper's threshold, to decide the truth

	offset, drift float64 // of the noise, in units of spread
	phase         float64 // factor on the cost of its current work
	work          float64 // factor on the amount of its work
	flags         sample.Flags
	cold          int // minutes for which it stays expensive after a start
	capped        float64
	trial         bool // it is capped for a trial
	idleMinutes   int  // minutes for which it uses almost nothing after a cap
	caps          int  // number of caps so far
	antagonist    bool
	gone          bool

	// of this minute
	wanted, demand, usage, expected, cost float64 // wanted is the demand without a cap
}

// noise returns this minute's noise, in units of the job's standard deviation.
func (m *machine) noise(t *task) float64 {
	t.drift = driftStay*t.drift + math.Sqrt((1-driftStay*driftStay)*shareDrift)*m.rng.NormFloat64()
	return t.offset + t.drift + math.Sqrt(shareWhite)*m.shape.draw(m.rng)
}

// past is the data of a minute that is kept to decide whether an accused task really hurt a
// victim.
type past struct {
	load             float64
	demand, expected []float64 // of each task
}

// memory is the history of the truth, in minutes: the paper's window.
const memory = 10

// hurts reports whether a task raised another's expected cost, without noise, in one of the
// last minutes, by at least the signal's least effect. An innocent that happens to load the
// channel counts as guilty too if it causes at least a quarter of the damage. Its part of the usual
// load is in the usual cost, and damages nothing.
func (m *machine) hurts(accused, victim int) bool {
	a, v := &m.tasks[accused], &m.tasks[victim]
	if a.weight == 0 || v.sensitivity == 0 || !v.sharesCache || accused == victim {
		return false
	}
	for i := 1; i <= min(m.minute, memory); i++ { // m.minute is already the next one
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
		if damage := p.expected[victim] - v.mean; a.antagonist || damage >= m.least(v) && effect >= damage/4 {
			return true
		}
	}
	return false
}

// least returns the least increase of a task's cost that matters.
func (m *machine) least(t *task) float64 {
	return max(m.signal.EffectRel*t.mean, m.signal.EffectAbs)
}
