package sim

import "github.com/quell-dev/quell/internal/core/sample"

// addAntagonists adds the antagonists and the confuser, which makes innocents look guilty.
func (m *machine) addAntagonists(specs Specs) {
	n := 1
	switch m.scenario.Pattern {
	case Turns:
		n = 2 + m.rng.IntN(2)
	case Group:
		n = 3 + m.rng.IntN(2)
	}
	m.antagonistClock = wave{kind: bursts, high: 1, meanOn: m.uniform(5, 15), meanOff: m.uniform(8, 20), from: calmMinutes}
	if m.scenario.Pattern == Onset {
		m.antagonistClock = wave{kind: onset, high: 1, from: calmMinutes + m.rng.IntN(10)}
	}
	m.react()
	jobs := others()
	for range n {
		t := m.join(m.pick(jobs), specs)
		high := m.uniform(1, 4)
		switch m.scenario.Channel {
		case SMT, CPU: // it uses the CPUs themselves
			high = m.uniform(0.38, 0.46) * float64(m.platform.CPUs) / float64(n)
		case IO, Net:
			high = m.rate(80, 300) / float64(n)
		}
		t.antagonist, t.sharesCache = true, true
		t.wave = wave{kind: led, high: high, low: 0.05 * high * m.rng.Float64()}
		if m.scenario.Pattern == Busier {
			t.wave.low = m.uniform(0.25, 0.45) * high
		}
		m.antagonists = append(m.antagonists, len(m.tasks)-1)
	}
	m.confuse(specs)
}

// react draws the antagonists' reaction to the end of a cap.
func (m *machine) react() {
	switch r := m.rng.Float64(); {
	case r < 0.2:
		m.reaction = lameDuck
	case r < 0.3:
		m.reaction = exits
	}
}

// visitors is the number of antagonists on a fleet's machine, and visitsADay the rate of
// their visits, in total, fitted like the rates in trouble.go.
const (
	visitors   = 2
	visitsADay = 0.15
)

// addVisitors adds antagonists that arrive independently and stay for minutes to an hour.
func (m *machine) addVisitors(specs Specs) {
	m.react()
	often := visitsADay
	for i := range visitors {
		job := m.pick(others())
		if g := m.scenario.Guests; g != nil {
			job, often = g.Visitors[i].Job, visitsADay*g.Frequency
		}
		t := m.join(job, specs)
		on := m.uniform(8, 60)
		off := visitors*24*60/often - on
		t.antagonist, t.sharesCache = true, true
		t.wave = wave{kind: bursts, high: m.uniform(1, 4), meanOn: on, meanOff: off, from: m.rng.IntN(int(off))}
		m.antagonists = append(m.antagonists, len(m.tasks)-1)
	}
}

// ease takes the load off visitors that press on nothing that the victim uses.
func (m *machine) ease() {
	g := m.scenario.Guests
	if g == nil {
		return
	}
	for n, i := range m.antagonists {
		if !g.Visitors[n].Presses {
			m.tasks[i].weight = 0
		}
	}
}

// confuse adds tasks or load that make innocents look guilty.
func (m *machine) confuse(specs Specs) {
	switch m.scenario.Confuser {
	case Scheduled:
		for range 2 + m.rng.IntN(2) {
			t := m.join(m.pick(others()), specs)
			high := m.uniform(0.5, 2)
			if m.countsOperations() {
				high = m.rate(5, 30)
			}
			// Led by the antagonists' clock, but with a delay, and not each time.
			t.sharesCache, t.weight = true, m.uniform(0.1, 0.6)
			t.wave = wave{kind: led, high: high, low: 0.05 * high, meanOn: m.uniform(3, 12), meanOff: m.uniform(20, 60)}
		}
	case CoVictims:
		left := 4
		for i := 1; i < len(m.tasks) && left > 0; i++ {
			if t := &m.tasks[i]; t.id.Class == sample.LatencySensitive {
				t.sharesCache, t.openLoop, t.sensitivity = true, true, m.uniform(0.7, 1.2)
				left--
			}
		}
	case Swing:
		m.tasks[0].wave = wave{kind: bursts, high: 1.5 * m.tasks[0].wave.high, low: 0.8 * m.tasks[0].wave.high, meanOn: 5, meanOff: 5}
	}
}

// advanceClock advances the antagonists' clock and the tasks that are led by it.
func (m *machine) advanceClock() {
	was := m.antagonistClock.on
	m.antagonistClock.next(m.minute, m.rng)
	if m.scenario.Pattern == Turns && m.minute%3 == 0 {
		m.turn = (m.turn + 1) % len(m.antagonists)
	}
	for n, i := range m.antagonists {
		m.tasks[i].wave.on = m.antagonistClock.on && (m.scenario.Pattern != Turns || n == m.turn)
	}
	for i := range m.tasks {
		t := &m.tasks[i]
		if t.antagonist || t.wave.kind != led {
			continue
		}
		w := &t.wave
		switch {
		case m.antagonistClock.on && !was && m.rng.Float64() < 0.75:
			w.left, w.on = 1+m.rng.IntN(3), false // starts after that time
		case w.left > 0:
			if w.left--; w.left == 0 {
				w.on = !w.on
				if w.on {
					w.left = max(2, int(w.meanOn*(0.5+m.rng.Float64())))
				}
			}
		case m.rng.Float64() < 1/w.meanOff: // independent of the antagonists
			w.on, w.left = true, max(2, int(w.meanOn*(0.5+m.rng.Float64())))
		}
	}
}
