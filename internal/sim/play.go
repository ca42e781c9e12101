package sim

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
	"github.com/quell-dev/quell/internal/stat"
	"github.com/quell-dev/quell/internal/trace"
)

// Setup is what a case is played with.
type Setup struct {
	Params  detect.Params
	Policy  plan.Policy
	Minutes int
	// Record, if set, is given every minute's samples.
	Record func(*sample.Sample)
	// Incidents keeps them, as they ended.
	Incidents bool
	// Outside says in each minute what ran outside any task too (outside.go).
	Outside bool
}

// Accusation is one task named for one victim: whom a cap would hit first.
type Accusation struct {
	At     sample.Millis
	Victim sample.TaskName
	Who    sample.TaskName
	// Right: it raised the victim's expected cost in the last ten minutes, by
	// what matters.
	Right bool
}

// Victim is a task that antagonists alone lifted over the paper's threshold,
// in three of five minutes, noise left out.
type Victim struct {
	Task  sample.TaskName
	Since sample.Millis // when that was so for the first time
	// Named: an antagonist of this machine was accused for it; or for another
	// victim, no later than ten minutes after this one became one.
	Named bool
	After time.Duration // from Since to the accusation
}

// Case is what came of one machine.
type Case struct {
	Scenario    *Scenario
	Seed        uint64
	Minutes     int
	Samples     int
	Outliers    int
	Anomalies   int
	Accusations []Accusation
	Victims     []Victim
	Rounds      []plan.Round
	// Trials are suspects held to find out; TrialsRight of them had hurt the
	// victim by what matters.
	Trials, TrialsRight int
	// Relief is what caps took and gave.
	Relief Relief
	// Incidents are in the order in which they ended, if they were asked for.
	Incidents []plan.Incident
	// Labels say who hurt whom, from when to when.
	Labels []trace.Label
}

// minute is the sampling period of CPI² (table 2).
const minute = time.Minute

// Player plays cases, one at a time, and keeps what they share.
type Player struct {
	shape *shape
	specs *Specs
}

// NewPlayer learns the specs with the seed.
func NewPlayer(seed uint64) *Player {
	sh := newShape()
	return &Player{sh, learn(seed, sh)}
}

// game is one case while it is played.
type game struct {
	*machine
	setup    Setup
	detector *detect.Detector
	planner  *plan.Planner
	readings []detect.Reading
	over     []uint8 // of each task: the last five minutes in which antagonists put it over, a bit each
	victim   []int   // its place among the victims, -1 if it is none
	accused  map[[2]int]bool
	result   Case
	tried    [2]int // victim and suspect of the newest finding that asks for a trial
	name     string // of the machine
	spans    map[[2]int][]span
	follow   []stat.Moments // what is learnt of a task that changed for good
	usages   [][2]float64   // of each task, least and most in the calm time (Params.UsageBins)
	under    []minutes      // of each victim, under caps
	outside  *outside       // nil: not asked for
}

// Play plays one case. Nothing is shared but what is read only, so that
// several may be played at once.
func (p *Player) Play(s *Scenario, seed uint64, setup Setup) Case {
	m := newMachine(*s, seed, p.shape, p.specs)
	g := &game{machine: m, setup: setup, detector: detect.New(setup.Params),
		planner:  plan.New(s.Name, setup.Params.Rule, setup.Policy),
		readings: make([]detect.Reading, len(m.tasks)), over: make([]uint8, len(m.tasks)), victim: make([]int, len(m.tasks)),
		accused: map[[2]int]bool{}, spans: map[[2]int][]span{}, name: fmt.Sprintf("%s-%d", s.Name, seed), follow: make([]stat.Moments, len(m.tasks)),
		result: Case{Scenario: s, Seed: seed, Minutes: setup.Minutes}}
	reach := [2]sample.Set{sample.SetOf(1), sample.SetOf(0)}
	for i := range m.tasks {
		t := &m.tasks[i]
		g.victim[i] = -1
		g.readings[i] = detect.Reading{Task: t.id, Reach: reach[0], Spec: t.spec}
		if t.here {
			g.readings[i].Reach = reach[1]
		}
		if setup.Params.OwnSpec {
			g.readings[i].Spec.Mean *= 1 + t.spread*t.offset
			g.readings[i].Spec.StdDev *= math.Sqrt(shareDrift + shareWhite)
		}
	}
	if setup.Params.UsageBins {
		g.usages = make([][2]float64, len(m.tasks))
	}
	if setup.Outside {
		g.outside = newOutside(m, seed)
		g.readings = append(g.readings, detect.Reading{Task: detect.Outside(), Cost: math.NaN()})
	}
	for range setup.Minutes {
		g.play()
	}
	if setup.Incidents {
		for _, inc := range g.planner.Open() {
			g.result.Incidents = append(g.result.Incidents, *inc)
		}
	}
	g.relief()
	g.result.Labels = g.labels()
	return g.result
}

// play plays one minute as the agent does: observe, judge, analyse at the
// pace that is allowed, act.
func (g *game) play() {
	at := sample.Millis(g.machine.minute+1) * sample.Millis(minute.Milliseconds())
	g.step()
	g.suffer(at)
	g.relieve()
	for i := range g.tasks {
		g.read(i, at)
	}
	if g.outside != nil {
		r := &g.readings[len(g.tasks)]
		r.Pressure = g.outside.usage(g.machine)
		r.CPU = r.Pressure
	}
	verdicts := g.detector.Observe(g.signal, at, g.readings)
	g.carryOut(at, g.planner.Interval(at, g.signal.Name, at, g.readings, verdicts))
	for i := range g.tasks {
		v := &verdicts[i]
		g.result.Samples++
		if v.Outlier {
			g.result.Outliers++
		}
		if v.Anomaly {
			g.result.Anomalies++
		}
		g.settleSpec(i, v)
	}
	now := at
	for range int(minute / g.setup.Params.Pace) {
		f, ok := g.detector.Next(now)
		if !ok {
			break
		}
		g.judge(now, &f)
		g.carryOut(now, g.planner.Finding(now, f, func(k sample.TaskKey) []detect.Point { return g.detector.Window(f.Signal, k) }))
		now = now.Add(g.setup.Params.Pace)
	}
	g.carryOut(now, g.planner.Tick(now))
}

// read makes the reading of a task.
func (g *game) read(i int, at sample.Millis) {
	t, r := &g.tasks[i], &g.readings[i]
	r.Cost, r.Pressure, r.CPU, r.Rate = t.cost, t.usage, t.usage, 0
	if g.named() {
		r.Rate, r.CPU = t.usage, 0.3
	}
	r.Flags, r.Stolen = t.flags, g.stolen
	t.flags &^= sample.Restarted
	if !math.IsInf(t.capped, 1) {
		r.Flags |= sample.Capped
	}
	if g.stolen >= g.setup.Params.StolenShare {
		r.Flags |= sample.Stolen
	}
	if t.gone {
		r.Cost, r.Pressure, r.CPU = math.NaN(), 0, 0
	}
	if g.usages != nil {
		g.bin(i)
	}
	if g.setup.Record != nil {
		g.setup.Record(&sample.Sample{TS: at, Machine: g.name, Job: t.id.Job, Task: t.id.Name, Platform: g.platform.Name,
			Signal: g.signal.Name, Variant: "sim", Class: t.id.Class, CPU: float32(r.CPU), Cost: float32(r.Cost), Coverage: 1, Flags: r.Flags})
	}
}

// bin leaves a task unjudged whose usage is none that its spec was learnt at:
// what a rule with a spec for each range of usage makes of it, since the model's
// calm cost does not depend on the usage.
func (g *game) bin(i int) {
	const margin = 0.1
	r, u := &g.readings[i], &g.usages[i]
	if g.machine.minute <= calmMinutes {
		if u[1] == 0 {
			u[0] = r.Pressure
		}
		u[0], u[1] = min(u[0], r.Pressure), max(u[1], r.Pressure)
		return
	}
	r.Spec.State = spec.Ready
	if r.Pressure < u[0]*(1-margin) || r.Pressure > u[1]*(1+margin) {
		r.Spec.State = spec.Insufficient
	}
}

// settleSpec follows what a task has changed to for good, as the agent does
// (plan.Planner.Follows), from thirty samples on.
func (g *game) settleSpec(i int, v *detect.Verdict) {
	r := &g.readings[i]
	if !v.Sane || !g.planner.Follows(g.signal.Name, r.Task.Key) {
		return
	}
	const enough = 30
	f := &g.follow[i]
	f.Add(r.Cost, 1)
	if f.N >= enough {
		r.Spec.StdDev = max(f.StdDev(), r.Spec.StdDev*f.Mean/r.Spec.Mean)
		r.Spec.Mean = f.Mean
		*f = stat.Moments{}
	}
}

// suffer keeps the truth: who has become a victim of antagonists.
func (g *game) suffer(at sample.Millis) {
	const five, three = 0x1f, 3
	for i := range g.tasks {
		if g.tasks[i].id.Class != sample.LatencySensitive {
			continue
		}
		g.over[i] = g.over[i] << 1 & five
		if g.suffers(i) {
			g.over[i] |= 1
			g.label(at, i)
		}
		n := 0
		for b := g.over[i]; b != 0; b &= b - 1 {
			n++
		}
		if n >= three && g.victim[i] < 0 {
			g.victim[i] = len(g.result.Victims)
			g.result.Victims = append(g.result.Victims, Victim{Task: g.tasks[i].id.Name, Since: at})
		}
	}
}

// judge notes whom a finding accuses, and whether it is right.
func (g *game) judge(now sample.Millis, f *detect.Finding) {
	if f.Trial {
		g.tried = [2]int{g.index(f.Victim.Key), g.index(f.Suspects[0].Key)}
	}
	if f.Kind != detect.Neighbour || f.Antagonists == 0 || f.Victim.Class != sample.LatencySensitive && !f.Victim.Protected {
		return
	}
	who := &f.Suspects[0]
	for i := range f.Suspects[:f.Antagonists] {
		if s := &f.Suspects[i]; s.Class != sample.LatencySensitive && !s.NeverCap {
			who = s
			break
		}
	}
	if who.Name == detect.OutsideName {
		return // nobody is accused
	}
	v, a := g.index(f.Victim.Key), g.index(who.Key)
	right := g.hurts(a, v)
	if right {
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
		g.result.Accusations = append(g.result.Accusations, Accusation{now, f.Victim.Name, who.Name, right})
	}
}

func (g *game) index(k sample.TaskKey) int { return int(k.Inode) - firstInode }

// carryOut does what the planner asks, at once.
func (g *game) carryOut(now sample.Millis, o plan.Output) {
	for _, a := range o.Actions {
		i := g.index(a.Task.Key)
		switch a.Kind {
		case plan.Adjust:
			g.tasks[i].capped = held(&a)
			continue
		case plan.Cap:
			if g.tasks[i].trial = strings.HasPrefix(a.Why, "trial"); g.tasks[i].trial {
				g.result.Trials++
				if g.hurts(g.tried[1], g.tried[0]) {
					g.result.TrialsRight++
				}
			}
			g.cap(i, held(&a))
			g.carryOut(now, g.planner.Applied(now, a.ID, nil))
			continue
		}
		g.cap(i, math.Inf(1))
		g.carryOut(now, g.planner.Lifted(now, a.ID, false))
	}
	for _, inc := range o.Incidents {
		if inc.Closed == now {
			for _, r := range inc.Rounds {
				g.result.Rounds = append(g.result.Rounds, *r)
			}
			if g.setup.Incidents {
				g.result.Incidents = append(g.result.Incidents, *inc)
			}
		}
	}
}
