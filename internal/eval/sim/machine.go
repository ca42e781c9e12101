package sim

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/quell-dev/quell/internal/core/sample"
)

// machine is the state of one simulated machine.
type machine struct {
	scenario        Scenario
	platform        Platform
	signal          sample.Signal
	rng             *rand.Rand
	shape           *shape
	tasks           []task // the victim is the first
	antagonists     []int
	usual           float64 // stress of the channel in a usual minute
	extra           float64 // above 0 while a load that cannot be seen presses on the channel
	trouble         wave    // when the trouble is on
	severity        float64
	stolen          float64
	antagonistClock wave // when antagonists are at work
	turn            int
	reaction        reaction
	minute          int
	load            float64
	past            [memory]past
}

// reaction is a task's behaviour after a cap on it has ended (CPI², section 6.2).
type reaction uint8

const (
	goesOn   reaction = iota
	lameDuck          // uses almost nothing for tens of minutes (case 5)
	exits             // ends under its second cap (case 6)
)

// calmMinutes is the calm period at the beginning of a case.
const calmMinutes = 30

// newMachine creates a machine of a scenario.
func newMachine(s Scenario, seed uint64, shape *shape, specs Specs) *machine {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.Name)) // never fails
	m := &machine{scenario: s, signal: s.Channel.Signal(), rng: rand.New(rand.NewPCG(seed, h.Sum64())), shape: shape}
	platforms := Platforms()
	m.platform = platforms[m.rng.IntN(len(platforms))]
	if s.Channel == SMT {
		m.platform = platforms[0] // the one with the largest effect of SMT
	}
	n := 20 + m.rng.IntN(16)
	if s.Crowded {
		n = 50 + m.rng.IntN(21)
	}
	for i := range n {
		m.add(i, specs)
	}
	switch {
	case s.Pattern != "":
		m.addAntagonists(specs)
	default:
		m.setTrouble()
	}
	if s.Visits {
		m.addVisitors(specs)
	}
	m.settle()
	m.ease()
	return m
}

// uniform draws from [low, high).
func (m *machine) uniform(low, high float64) float64 { return low + (high-low)*m.rng.Float64() }

// rate draws operations a second, as multiples of the least rate at which a task's samples
// count (sample.Signal.LeastRate).
func (m *machine) rate(low, high float64) float64 { return m.signal.LeastRate * m.uniform(low, high) }

// pick draws one of the jobs.
func (m *machine) pick(jobs []Job) Job { return jobs[m.rng.IntN(len(jobs))] }

// add adds the i-th of the usual tasks; the first is the victim.
func (m *machine) add(i int, specs Specs) {
	s := m.scenario
	job := m.pick(others())
	if i == 0 || m.rng.Float64() < 0.45 {
		job = m.pick(served())
	}
	switch { // the family determines the victim's job
	case i == 0 && s.Guests != nil:
		job = s.Guests.Victim
	case i > 0 || s.Visits:
	case s.Uneven:
		job = served()[1] // σ is 19 % of the mean
	case s.Channel == SMT:
		job = served()[3] // 9 %: otherwise even SMT's full 53 % is no outlier
	case !s.Strong && s.Pattern == "":
		job = served()[2] // 10 %
	}
	t := m.join(job, specs)
	usage := m.uniform(0.3, 1.5)
	if m.countsOperations() {
		usage = m.rate(2, 20)
	}
	t.sharesCache = i == 0 || m.rng.Float64() < 0.6
	t.openLoop = t.id.Class == sample.LatencySensitive && m.rng.Float64() < 0.7
	t.wave = wave{kind: steady, high: usage}
	bursty := 0.3
	if s.Loud {
		bursty = 0.6
	}
	switch r := m.rng.Float64(); {
	case i == 0:
	case t.id.Class != sample.LatencySensitive && r < bursty:
		t.wave = wave{kind: bursts, high: usage * 1.5, low: usage * 0.1, meanOn: m.uniform(3, 25), meanOff: m.uniform(3, 40)}
	case t.id.Class != sample.LatencySensitive && r < bursty+0.15:
		t.wave = wave{kind: cron, high: usage * 1.5, low: usage * 0.1, meanOn: m.uniform(3, 8), meanOff: m.uniform(10, 50), from: m.rng.IntN(20)}
	}
	t.weight = m.uniform(0.3, 1.7) // settle scales it to a share of the calm load
	t.sensitivity = 0.05
	if m.rng.Float64() < 0.3 {
		t.sensitivity = m.uniform(0.1, 0.6)
	}
	if i == 0 {
		t.sensitivity, t.openLoop = 1, m.rng.Float64() < 0.7
		t.wave.high = max(usage, 0.6)
	}
}

// countsOperations reports whether pressure is in operations, not in CPU time.
func (m *machine) countsOperations() bool {
	return m.scenario.Channel == IO || m.scenario.Channel == Net
}

// join adds a task of a job.
func (m *machine) join(job Job, specs Specs) *task {
	i := len(m.tasks)
	sp := specs.of(job, m.signal)
	m.tasks = append(m.tasks, task{
		id: sample.Task{Key: sample.TaskKey{Inode: uint64(firstInode + i)}, Job: job.Name, Class: job.Class,
			Name: sample.TaskName(fmt.Sprintf("/%s/%d", job.Name, i))},
		mean: sp.mean, spread: sp.stddev / sp.mean, spec: sp.Spec, phase: 1, work: 1, capped: math.Inf(1),
		offset: math.Sqrt(shareTask) * m.rng.NormFloat64(), drift: math.Sqrt(shareDrift) * m.rng.NormFloat64(),
	})
	t := &m.tasks[i]
	t.threshold = max(t.mean*(1+2*t.spread), t.mean*(1+m.signal.EffectRel), t.mean+m.signal.EffectAbs)
	return t
}

// settle scales the total load of the usual tasks to the channel's calm load, and the
// victim's sensitivity to the slowdown that the scenario requires.
func (m *machine) settle() {
	var sum float64
	for i := range m.tasks {
		if t := &m.tasks[i]; t.sharesCache && !t.antagonist {
			sum += t.weight * t.wave.mean()
		}
	}
	calm := m.scenario.Channel.calm()
	for i := range m.tasks {
		if t := &m.tasks[i]; t.sharesCache && !t.antagonist {
			t.weight *= calm / sum
		} else if !t.antagonist {
			t.weight = 0
		}
	}
	low, high := calm, m.peak()
	active := float64(max(len(m.antagonists), 1))
	if m.scenario.Pattern == Turns || m.scenario.Visits {
		active = 1
	}
	for _, i := range m.antagonists {
		t := &m.tasks[i]
		t.weight = (high - calm) / (active * t.wave.high)
		low += t.weight * t.wave.low / float64(len(m.antagonists)) * active
	}
	m.usual = m.stress(low)
	v := &m.tasks[0]
	target := v.threshold * m.uniform(1.12, 1.45)
	switch {
	case m.scenario.Strong:
		target = v.threshold * m.uniform(1.7, 3.5)
	case m.scenario.Visits: // a long tail (CPI², figure 14d)
		target = v.threshold * min(4, 1.05+0.6*m.rng.ExpFloat64())
	}
	if m.scenario.Channel == SMT {
		target = min(target, v.mean*(1+m.platform.SMT*(m.stress(high)-m.usual)))
	}
	scale := (target/v.mean - 1) / max(m.stress(high)-m.usual, 1e-9)
	for i := range m.tasks {
		m.tasks[i].sensitivity *= scale
	}
}

// peak draws the load of the channel with antagonists.
func (m *machine) peak() float64 {
	switch m.scenario.Channel {
	case LLC:
		return m.uniform(1.8, 3.5)
	case SMT, CPU:
		return m.uniform(0.88, 0.96)
	}
	return m.uniform(0.75, 0.92)
}

func (m *machine) stress(load float64) float64 {
	return m.scenario.Channel.stress(load, m.platform.CPUs)
}

// mean is the wave's mean demand; the high level if it is led or constant.
func (w *wave) mean() float64 {
	switch w.kind {
	case bursts, cron:
		return (w.high*w.meanOn + w.low*w.meanOff) / (w.meanOn + w.meanOff)
	}
	return w.high
}

// firstInode is the inode of the first task.
const firstInode = 1000
