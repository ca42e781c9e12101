package sim

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// step plays the next minute: the tasks' demand, the resulting stress of the channel, and
// the costs.
func (m *machine) step() {
	if m.scenario.Pattern != "" {
		m.advanceClock()
	} else {
		m.troubles()
	}
	tide, wander := m.tide(), m.wander()
	m.load = 0
	for i := range m.tasks {
		t := &m.tasks[i]
		if t.gone {
			continue
		}
		t.demand = t.wave.next(m.minute, m.rng) * (1 + 0.08*m.rng.NormFloat64())
		if !t.antagonist {
			t.demand *= tide * t.work
		}
		if t.idleMinutes > 0 {
			t.idleMinutes--
			t.demand *= 0.03
		}
		t.wanted = max(t.demand, 0)
		t.demand = min(t.wanted, t.capped)
		m.load += t.weight * t.demand
	}
	stress := m.stress(m.load) - m.usual
	if m.extra > 0 {
		stress += m.stress(m.peak()) - m.usual
	}
	stolen := m.stolen / (1 - m.stolen)
	p := &m.past[m.minute%memory]
	p.load = m.load
	p.demand = slices.Grow(p.demand[:0], len(m.tasks))[:len(m.tasks)]
	p.expected = slices.Grow(p.expected[:0], len(m.tasks))[:len(m.tasks)]
	for i := range m.tasks {
		t := &m.tasks[i]
		if t.gone {
			p.demand[i] = 0
			continue
		}
		slow := 1.0
		if t.sharesCache {
			slow = max(0.8, 1+t.sensitivity*stress)
		}
		t.expected = t.mean * slow
		cost := t.expected * t.phase * wander * (1 + 0.7*stolen)
		if t.cold > 0 {
			t.cold--
			cost *= 1.8
		}
		if t.flags&sample.Throttled != 0 && m.scenario.Trouble == everyday {
			cost *= 1.5
		}
		t.cost = max(cost*(1+t.spread*m.noise(t)), m.signal.Min)
		t.usage = t.demand
		if t.openLoop && m.signal.Name == sample.CPI {
			t.usage *= min(3, cost/t.mean) // each minute's work is done in it; waiting takes no CPU
		}
		p.demand[i], p.expected[i] = t.demand, t.expected
	}
	m.minute++
}

// suffers reports whether only antagonists raise a task's expected cost over the paper's
// threshold in the minute just played.
func (m *machine) suffers(victim int) bool {
	v := &m.tasks[victim]
	if !v.sharesCache || v.expected <= v.threshold || len(m.antagonists) == 0 {
		return false
	}
	load := m.load
	for _, i := range m.antagonists {
		if t := &m.tasks[i]; !t.gone {
			load -= t.weight * t.demand
		}
	}
	without := v.mean * max(0.8, 1+v.sensitivity*(m.stress(load)-m.usual))
	return without <= v.threshold && v.expected-without >= m.least(v)
}

// cap limits a task to the given rate, or removes the limit at math.Inf(1).
func (m *machine) cap(i int, rate float64) {
	t := &m.tasks[i]
	if math.IsInf(rate, 1) && !math.IsInf(t.capped, 1) {
		switch {
		case !t.antagonist:
		case m.reaction == lameDuck:
			t.idleMinutes = 10 + m.rng.IntN(20)
		case m.reaction == exits && t.caps >= 2:
			t.gone = true
			t.demand, t.usage = 0, 0
		}
	}
	if !math.IsInf(rate, 1) {
		t.caps++
	}
	t.capped = rate
}
