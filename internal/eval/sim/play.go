package sim

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/format/trace"
)

// Setup holds the settings of a case.
type Setup struct {
	Rule    rivals.Rule
	Policy  plan.Policy
	Minutes int
	// Start is the time of the case's beginning.
	Start sample.Millis
	// Blind: nothing is detected and no task is capped. Only the truth is played.
	Blind bool
	// Record, if set, receives the samples of every minute, or of every RecordEvery-th one.
	Record      func(*sample.Sample)
	RecordEvery int
	// Changed, if set, receives each state of each incident, as an agent reports them.
	Changed func(*incident.Record)
	// Incidents adds the incidents to the result, in their final state.
	Incidents bool
	// Found, if set, is called with each finding and a function that reports which tasks
	// hurt its victim; from several goroutines if several cases are played in parallel.
	Found func(machine string, f *pipeline.Finding, hurts func(sample.TaskKey) bool)
	// Outside adds the load outside any task to each minute (outside.go).
	Outside bool
	// Suffer is how much antagonists, and bystanders that start with them, suffer from the channel
	// themselves, as a multiple of the victim's sensitivity. 0: their own cost stays as it is alone,
	// which distinguishes them from co-victims.
	Suffer float64
}

// Accusation is one task named for one victim: the one that would be capped first.
type Accusation struct {
	At      sample.Millis
	Victim  sample.TaskName
	Suspect sample.TaskName
	// Right: it raised the victim's expected cost in the last ten minutes, by at least the
	// least effect.
	Right bool
}

// Victim is a task whose expected cost, without noise, only antagonists raise over the
// paper's threshold, in three of five minutes.
type Victim struct {
	Task  sample.TaskName
	Since sample.Millis // first time of that
	// Named: an antagonist of this machine was accused for it; or for another victim, no
	// later than ten minutes after Since.
	Named bool
	After time.Duration // from Since to the accusation
}

// Case is the result of one machine.
type Case struct {
	Scenario    *Scenario
	Seed        uint64
	Minutes     int
	Samples     int
	Outliers    int
	Anomalies   int
	Accusations []Accusation
	Victims     []Victim
	Rounds      []*plan.Round
	// Trials is the number of suspects limited for a trial; TrialsRight of them had hurt
	// the victim by at least the least effect.
	Trials, TrialsRight int
	// Relief is the cost and the benefit of caps.
	Relief Relief
	// Incidents are in the order in which they ended, if they were requested.
	Incidents []incident.Record
	// Labels say which task hurt which, and when.
	Labels []trace.Label
	// Suffered is the number of minutes in which antagonists alone raised a latency-sensitive
	// task over the paper's threshold, summed over those tasks.
	Suffered int
}

// minute is the sampling period of CPI² (table 2).
const minute = time.Minute

// Simulator plays cases, one at a time, and keeps their shared data.
type Simulator struct {
	shape *shape
	specs Specs
}

// NewSimulator learns the specs with the seed.
func NewSimulator(seed uint64) *Simulator {
	sh := newShape()
	return &Simulator{sh, learn(seed, sh)}
}

// caseRun is one case in play.
type caseRun struct {
	*machine
	setup    Setup
	pipeline *pipeline.Pipeline
	subjects []pipeline.Subject
	extras   []sample.Extras // of each task, if its signal or the hypervisor has any
	over     []uint8         // of each task: a bit for each of the last five minutes, set if antagonists raised it over the threshold
	victim   []int           // its index among the victims, -1 if it is none
	accused  map[[2]int]bool
	capped   map[[2]int]bool // of victim and capped task: it hurt the victim when a cap on it began
	result   Case
	name     string // of the machine
	spans    map[[2]int][]span
	follow   []stat.Moments // statistics of a task that changed for good
	usages   [][2]float64   // of each task, minimum and maximum in the calm period (rivals.Rule.UsageBins)
	under    []minutes      // of each victim, under caps
	outside  *outside       // nil: not requested
	counts   *counts        // nil: samples are not recorded
}

// Run plays one case. Shared data is only read, so several cases may be played in
// parallel.
func (p *Simulator) Run(s *Scenario, seed uint64, setup Setup) Case {
	return play(newMachine(*s, seed, p.shape, p.specs), s, seed, setup)
}

// play plays a case on a machine.
func play(m *machine, s *Scenario, seed uint64, setup Setup) Case {
	name := fmt.Sprintf("%s-%d", s.Name, seed)
	g := &caseRun{machine: m, setup: setup,
		pipeline: pipeline.New(pipeline.Config{Machine: name, CPUs: m.platform.CPUs, Detect: setup.Rule.Params, Policy: setup.Policy, Charts: setup.Incidents}),
		subjects: make([]pipeline.Subject, len(m.tasks)), extras: make([]sample.Extras, len(m.tasks)), over: make([]uint8, len(m.tasks)), victim: make([]int, len(m.tasks)),
		accused: map[[2]int]bool{}, capped: map[[2]int]bool{}, spans: map[[2]int][]span{}, name: name, follow: make([]stat.Moments, len(m.tasks)),
		result: Case{Scenario: s, Seed: seed, Minutes: setup.Minutes}}
	for i := range m.tasks {
		t := &m.tasks[i]
		if t.sensitivity == 0 {
			t.sensitivity = setup.Suffer * m.tasks[0].sensitivity
		}
		g.victim[i] = -1
		g.subjects[i] = pipeline.Subject{Task: t.id, Spec: t.spec}
		if setup.Rule.OwnSpec {
			g.subjects[i].Spec.Mean *= 1 + t.spread*t.offset
			g.subjects[i].Spec.StdDev *= math.Sqrt(shareDrift + shareWhite)
		}
	}
	if setup.Rule.UsageBins {
		g.usages = make([][2]float64, len(m.tasks))
	}
	if setup.Outside {
		g.outside = newOutside(m, seed)
	}
	if setup.Record != nil {
		g.counts = newCounts(m, seed)
	}
	for range setup.Minutes {
		g.playMinute()
	}
	if setup.Incidents {
		for _, c := range g.pipeline.Open() {
			g.result.Incidents = append(g.result.Incidents, incident.Record(c))
		}
	}
	g.relief()
	g.result.Labels = g.labels()
	return g.result
}

// reaches are the domains of tasks: another one, and the victim's cache domain.
var reaches = [2]sample.Set{{2}, {1}}

// playMinute plays one minute like the agent. Caps whose lease expires end with it.
func (g *caseRun) playMinute() {
	at := g.setup.Start + sample.Millis(g.machine.minute+1)*sample.Millis(minute.Milliseconds())
	g.step()
	g.recordVictims(at)
	if g.setup.Blind {
		return
	}
	g.relieve()
	iv := g.pipeline.Begin(g.signal, at, time.Second) // extras are rates per second
	for i := range g.tasks {
		iv.Add(&g.subjects[i], g.measure(i, at))
	}
	if g.outside != nil {
		usage := g.outside.usage(g.machine)
		m := pipeline.Measurement{CPU: usage, Cost: math.NaN()}
		if g.countsOperations() {
			m.Extras = &g.outside.extras
			m.Extras.Set(g.signal.Activity, usage)
		}
		iv.Add(&g.outside.subject, m)
	}
	verdicts := iv.End(at)
	g.carryOut(at)
	for i := range g.tasks {
		v := &verdicts[i]
		g.result.Samples++
		if v.Outlier {
			g.result.Outliers++
		}
		if v.Anomaly {
			g.result.Anomalies++
		}
		g.settleSpec(i, iv.Reading(i), v)
	}
	now := at
	for n := 0; n < int(minute/g.setup.Rule.Pace) && g.pipeline.Analyse(now); n++ {
		g.carryOut(now)
		now = now.Add(g.setup.Rule.Pace)
	}
	g.pipeline.Tick(now)
	g.carryOut(now)
}

// sampling is the assumed length of each minute's interval in recorded samples (CPI², table
// 2).
const sampling = 10 * time.Second

// measure returns the minute's measurement of a task.
func (g *caseRun) measure(i int, at sample.Millis) pipeline.Measurement {
	t := &g.tasks[i]
	m := pipeline.Measurement{CPU: t.usage, Cost: t.cost, Flags: t.flags, Reach: reaches[0]}
	if t.sharesCache {
		m.Reach = reaches[1]
	}
	t.flags &^= sample.Restarted
	if !math.IsInf(t.capped, 1) {
		m.Flags |= sample.Capped
	}
	if g.stolen >= g.setup.Rule.StolenShare {
		m.Flags |= sample.Stolen
		m.Extras = &g.extras[i]
		m.Extras.Set(sample.StolenShare, g.stolen)
	}
	usage := t.usage
	if t.gone {
		m.Cost, m.CPU, usage = math.NaN(), 0, 0
	}
	if g.countsOperations() {
		m.Extras = &g.extras[i]
		m.Extras.Set(g.signal.Activity, usage)
		if !t.gone {
			m.CPU = 0.3
		}
	}
	if g.usages != nil {
		g.bin(i, usage)
	}
	if g.setup.Record != nil && g.machine.minute%max(1, g.setup.RecordEvery) == 0 { // the minute's number, from 1
		s := sample.Sample{TS: at, Machine: g.name, Job: t.id.Job, Task: t.id.Name, Platform: g.platform.Name, Signal: g.signal.Name,
			Variant: "sim", Class: t.id.Class, CPU: float32(m.CPU), Cost: float32(m.Cost), Coverage: 1, Flags: m.Flags}
		if m.Extras != nil {
			s.Extras = *m.Extras
			if n, ok := s.Extras.Get(g.signal.Activity); ok && g.countsOperations() {
				s.Extras.Set(g.signal.Activity, n*sampling.Seconds())
			}
		}
		g.counts.set(&s, t, i)
		g.setup.Record(&s)
	}
	return m
}

// bin excludes a task from judgement if its usage is outside the range in which its spec
// was learnt. That is the effect of a rule with a spec for each range of usage, since the
// model's calm cost does not depend on the usage.
func (g *caseRun) bin(i int, usage float64) {
	const margin = 0.1
	s, u := &g.subjects[i].Spec, &g.usages[i]
	if g.machine.minute <= calmMinutes {
		if u[1] == 0 {
			u[0] = usage
		}
		u[0], u[1] = min(u[0], usage), max(u[1], usage)
		return
	}
	s.State = spec.Ready
	if usage < u[0]*(1-margin) || usage > u[1]*(1+margin) {
		s.State = spec.Insufficient
	}
}

// settleSpec follows a permanent change of a task, like the agent
// (pipeline.Pipeline.Follows), from thirty samples on.
func (g *caseRun) settleSpec(i int, r *detect.Reading, v *detect.Verdict) {
	if !v.Sane || !g.pipeline.Follows(g.signal.Name, r.Task.Key) {
		return
	}
	s := &g.subjects[i].Spec
	const enough = 30
	f := &g.follow[i]
	f.Add(r.Cost, 1)
	if f.N >= enough {
		s.StdDev = max(f.StdDev(), s.StdDev*f.Mean/s.Mean)
		s.Mean = f.Mean
		*f = stat.Moments{}
	}
}

// recordVictims records the truth: which tasks have become victims of antagonists.
func (g *caseRun) recordVictims(at sample.Millis) {
	const (
		newest = 0x1f // bits of the last five minutes
		least  = 3    // minutes over the threshold among them, as many as make an anomaly
	)
	for i := range g.tasks {
		if g.tasks[i].id.Class != sample.LatencySensitive {
			continue
		}
		g.over[i] = g.over[i] << 1 & newest
		if g.suffers(i) {
			g.result.Suffered++
			g.over[i] |= 1
			g.label(at, i)
		}
		if bits.OnesCount8(g.over[i]) >= least && g.victim[i] < 0 {
			g.victim[i] = len(g.result.Victims)
			g.result.Victims = append(g.result.Victims, Victim{Task: g.tasks[i].id.Name, Since: at})
		}
	}
}

// recordFinding records which suspect a finding accuses, and whether that is right.
func (g *caseRun) recordFinding(f *pipeline.Finding) {
	now := f.Now
	if g.setup.Found != nil {
		victim := g.index(f.Victim.Key)
		g.setup.Found(g.name, f, func(k sample.TaskKey) bool { return g.hurts(g.index(k), victim) })
	}
	if f.Kind != detect.Neighbour || f.Antagonists == 0 || f.Victim.Class != sample.LatencySensitive && !f.Victim.Protected {
		return
	}
	who := &f.Suspects[0]
	for i := range f.Suspects[:f.Antagonists] {
		if s := &f.Suspects[i]; s.MayBeCapped() {
			who = s
			break
		}
	}
	g.accuse(now, &f.Victim, who)
}

// accuse records an accusation: a name from the level for a cap on if suspects are tried,
// otherwise from the level for advice on.
func (g *caseRun) accuse(now sample.Millis, victim *sample.Task, who *detect.Suspect) {
	level := detect.Likely
	if g.setup.Policy.TrialsEnabled() {
		level = g.pipeline.Policy().MinLevel
	}
	if who.Name == detect.OutsideName || who.Level < level {
		return // no task is accused
	}
	v, a := g.index(victim.Key), g.index(who.Key)
	// A group is named after rounds in which its members were capped.
	right := g.hurts(a, v) || who.Basis == detect.ByGroup && g.capped[[2]int{v, a}]
	if right && g.tasks[a].antagonist { // to name an innocent that causes a part of it is not to find the antagonist
		for i, n := range g.victim {
			if n < 0 {
				continue
			}
			if w := &g.result.Victims[n]; !w.Named && (i == v || now.Sub(w.Since) <= memory*minute) {
				w.Named, w.After = true, max(0, now.Sub(w.Since))
			}
		}
	}
	if pair := [2]int{v, a}; !g.accused[pair] {
		g.accused[pair] = true
		g.result.Accusations = append(g.result.Accusations, Accusation{now, victim.Name, who.Name, right})
	}
}

func (g *caseRun) index(k sample.TaskKey) int { return int(k.Inode) - firstInode }

// carryOut processes the pipeline's results, and executes its actions at once.
func (g *caseRun) carryOut(now sample.Millis) {
	for {
		r, more := g.pipeline.Ready()
		if !more {
			return
		}
		for i := range r.Findings {
			g.recordFinding(&r.Findings[i])
		}
		for i := range r.Actions {
			g.act(now, &r.Actions[i])
		}
		for i := range r.Incidents {
			c := &r.Incidents[i]
			if g.setup.Changed != nil {
				g.setup.Changed((*incident.Record)(c))
			}
			for k := range c.Findings { // a trial may have proven some
				if s := &c.Findings[k].Suspect; s.Level == detect.Proven && (c.Victim.Class == sample.LatencySensitive || c.Victim.Protected) {
					g.accuse(now, &c.Victim, s)
				}
			}
			if c.Closed == now {
				g.result.Rounds = append(g.result.Rounds, c.Rounds...)
				if g.setup.Incidents {
					g.result.Incidents = append(g.result.Incidents, incident.Record(*c))
				}
			}
		}
	}
}

func (g *caseRun) act(now sample.Millis, a *plan.Action) {
	i := g.index(a.Task.Key)
	switch a.Kind {
	case plan.Adjust:
		g.tasks[i].capped = limitOf(a)
	case plan.Cap:
		if victim := g.index(a.Victim); g.hurts(i, victim) {
			g.capped[[2]int{victim, i}] = true
		}
		if g.tasks[i].trial = strings.HasPrefix(a.Why, "trial"); g.tasks[i].trial {
			g.result.Trials++
			if g.hurts(i, g.index(a.Victim)) {
				g.result.TrialsRight++
			}
		}
		g.cap(i, limitOf(a))
		g.pipeline.Applied(now, a.ID, nil)
	case plan.Uncap:
		g.cap(i, math.Inf(1))
		g.pipeline.Lifted(now, a.ID, false)
	}
}
