package sim

import (
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
)

// setTrouble prepares the trouble of a machine without antagonists.
func (m *machine) setTrouble() {
	m.trouble = wave{kind: bursts, high: 1, meanOn: m.uniform(4, 15), meanOff: m.uniform(5, 25), from: calmMinutes}
	m.severity = m.uniform(1.4, 3)
	switch m.scenario.Trouble {
	case Level:
		m.trouble = wave{kind: onset, high: 1, from: calmMinutes + m.rng.IntN(10)}
	case Bimodal:
		m.severity = m.uniform(1.5, 3.3) // case 3 of the paper: from about 3 to about 10
	case Steal:
		m.severity = m.uniform(0.1, 0.4)
	case Racket:
		for i := range m.tasks {
			if t := &m.tasks[i]; i > 0 && t.id.Class != sample.LatencySensitive && m.rng.Float64() < 0.4 {
				t.sharesCache, t.weight = true, 0.02 // it computes in registers
				t.wave = wave{kind: bursts, high: m.uniform(3, 8), low: 0.1, meanOn: m.uniform(3, 20), meanOff: m.uniform(3, 30)}
			}
		}
	case everyday:
		m.trouble = wave{kind: steady}
	}
}

// Rates of the everyday fleet, per latency-sensitive task and day. Their ratios are
// assumed. A common factor, and visitsADay, are fitted to two figures of CPI² section 7 by
// rule cpi2 (docs/sim.md): 0.37 accusing incidents a machine-day, and 0.70 of the caps
// helping by more than σ.
const (
	levelsADay   = 0.0025 // changes to another level of cost
	restartsADay = 0.01
	quotasADay   = 0.01 // a burst that uses up the task's own quota
)

// troubles applies this minute's trouble.
func (m *machine) troubles() {
	v := &m.tasks[0]
	on := m.trouble.next(m.minute, m.rng) > 0
	v.work, v.flags, m.stolen, m.extra = 1, v.flags&^sample.Throttled, 0, 0
	if m.scenario.Trouble == everyday { // phases stay until a restart
		m.usualDay()
		return
	}
	v.phase = 1
	if m.scenario.Trouble == Churn && m.minute >= calmMinutes {
		for i := range m.tasks {
			if t := &m.tasks[i]; m.rng.Float64() < 1.0/60 && (i == 0 || i%4 == 1) {
				t.flags |= sample.Restarted
				t.cold = 2 + m.rng.IntN(3)
			}
		}
	}
	if !on {
		return
	}
	switch m.scenario.Trouble {
	case OwnQuota:
		v.phase *= m.severity
		v.flags |= sample.Throttled
	case Level:
		v.phase *= m.severity
	case Bimodal:
		v.phase *= m.severity
		v.work = 0.4
	case MoreWork:
		v.phase *= m.severity
		v.work = 1.6
	case Steal:
		m.stolen = m.severity * m.uniform(0.7, 1.3)
	case Unseen:
		m.extra = 1
	}
}

// usualDay is a minute of a usual day: each latency-sensitive task has its own small
// troubles.
func (m *machine) usualDay() {
	const minutes = 24 * 60
	for i := range m.tasks {
		t := &m.tasks[i]
		if t.id.Class != sample.LatencySensitive {
			continue
		}
		if t.flags&sample.Throttled != 0 && m.rng.Float64() < 0.2 {
			t.flags &^= sample.Throttled
		}
		switch r := m.rng.Float64() * minutes; {
		case r < levelsADay:
			t.phase *= m.uniform(1.2, 2)
		case r < levelsADay+restartsADay:
			t.flags |= sample.Restarted
			t.cold, t.phase = 2+m.rng.IntN(3), 1
		case r < levelsADay+restartsADay+quotasADay:
			t.flags |= sample.Throttled
		}
	}
}

// tide is the change of all tasks' load over the day: ±20 %, or ±50 % over three hours if
// the scenario is Diurnal.
func (m *machine) tide() float64 {
	period, swing := 24*60.0, 0.2
	if m.scenario.Trouble == Diurnal {
		period, swing = 180, 0.5
	}
	return 1 + swing*math.Sin(2*math.Pi*float64(m.minute)/period)
}

// wander is the daily wave of a job's cost: CPI² figure 5 gives it a coefficient of
// variation of about 4 %, an amplitude of √2 times that. The factor is half of it.
func (m *machine) wander() float64 {
	return 1 + math.Sqrt2*0.04*math.Sin(2*math.Pi*(float64(m.minute)/(24*60)+0.25))*0.5
}
