package pipeline_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

var nan = math.NaN()

// world is one machine under script: a pipeline driven as hosts drive it, in steps of a
// second, and a simulated enforcer. A shadow pipeline gets the same input, with the
// readings of each instant in another order; its output must never differ.
type world struct {
	t      *testing.T
	signal sample.Signal
	every  time.Duration
	params detect.Params
	policy plan.Policy
	tasks  map[string]*scripted
	names  []string // in order of appearance
	now    state
	pair   [2]*pipeline.Pipeline
	rng    *rand.Rand
	wanted map[sample.TaskName]float64 // correlations that were constructed

	enforcer, cause string
	held            []plan.Action
	books           map[string]*entry // caps as the enforcer knows them

	out   strings.Builder
	said  map[sample.TaskName]string // findings printed
	state map[string]string          // of incidents, as printed
	order []string                   // incidents by appearance
	// records are what incidents said before, by ID.
	records map[string]remembered
	found   detect.Finding // the last finding

	adjusted, renewed int // caps that were adjusted, and those of them that were extended
}

type state struct {
	at    sample.Millis
	cells map[string]cell
}

type scripted struct {
	sample.Task
	spec spec.Spec
	gone bool
}

// output is everything that a call returned.
type output struct {
	findings  []pipeline.Finding
	actions   []plan.Action
	incidents []pipeline.Change
}

// drain takes the results of a call, before any action is carried out.
func drain(p *pipeline.Pipeline) (out output) {
	for {
		r, more := p.Ready()
		if !more {
			return out
		}
		out.findings, out.actions, out.incidents = append(out.findings, r.Findings...), append(out.actions, r.Actions...), append(out.incidents, r.Incidents...)
	}
}

func newWorld(t *testing.T) *world {
	w := &world{t: t}
	w.machine(nil)
	return w
}

// machine starts anew. Keys: rule, mode, signal, start (15:04), every, for, longest,
// calm, confine, cap, max-caps, top, least-cpu, io-ops.
func (w *world) machine(args []string) {
	w.t.Helper()
	if w.pair[0] != nil {
		w.end()
	}
	rule, start := detect.Quell, "12:00"
	w.signal, _ = sample.LookupSignal(sample.CPI)
	w.policy, w.every = plan.Paper(), time.Minute
	w.policy.Mode = plan.On
	top := 0
	for _, arg := range args {
		k, v, _ := strings.Cut(arg, "=")
		ok, err := true, error(nil)
		switch k {
		case "rule":
			rule = detect.Method(v)
		case "mode":
			w.policy.Mode, err = plan.ParseMode(v)
		case "signal":
			w.signal, ok = sample.LookupSignal(sample.SignalName(v))
		case "start":
			start = v
		case "every":
			w.every = w.duration(v)
		case "for":
			w.policy.For = w.duration(v)
		case "longest":
			w.policy.MaxDuration = w.duration(v)
		case "confine":
			w.policy.Confine = int(w.number(v))
		case "calm":
			w.policy.Calm = w.duration(v)
		case "cap":
			w.policy.Feedback = v == "feedback"
		case "max-caps":
			w.policy.MaxCaps = int(w.number(v))
		case "top":
			top = int(w.number(v))
		case "io-ops":
			w.policy.IO = plan.IORate{Ops: uint64(w.number(v)), Bytes: 1 << 20}
		case "least-cpu":
			w.signal.LeastCPU = w.number(v)
		default:
			ok = false
		}
		if !ok || err != nil {
			w.t.Fatalf("machine: %q: %v", arg, err)
		}
	}
	var err error
	if w.params, err = detect.Paper(rule); err != nil {
		w.t.Fatal(err)
	}
	if top > 0 {
		w.params.Top = top
	}
	began, err := time.Parse("2006-01-02 15:04", "2011-05-16 "+start)
	if err != nil {
		w.t.Fatal(err)
	}
	w.now = state{sample.At(began), map[string]cell{}}
	for i := range w.pair {
		w.pair[i] = pipeline.New(pipeline.Config{Machine: "machine", Detect: w.params, Policy: w.policy, Charts: true})
	}
	w.rng = rand.New(rand.NewPCG(1, 2))
	w.tasks, w.names = map[string]*scripted{}, nil
	w.enforcer, w.held, w.books = "works", nil, map[string]*entry{}
	w.said, w.state, w.order = map[sample.TaskName]string{}, map[string]string{}, nil
	w.records = map[string]remembered{}
	w.wanted, w.found = map[sample.TaskName]float64{}, detect.Finding{}
}

func (w *world) addTask(args []string) {
	w.t.Helper()
	s := &scripted{Task: sample.Task{Name: sample.TaskName(args[0]),
		Key: sample.TaskKey{Inode: uint64(len(w.names) + 1), FirstSeen: w.now.at}}}
	for _, arg := range args[1:] {
		mean, sd, ok := strings.Cut(arg, "±")
		switch {
		case ok:
			s.spec = spec.Spec{State: spec.Ready, Mean: w.number(mean), StdDev: w.number(sd), SelfSamples: 100}
		case arg == "protected":
			s.Protected = true
		case arg == "never-cap":
			s.NeverCap = true
		default:
			var err error
			if s.Class, err = sample.ParseClass(arg); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	w.tasks[args[0]] = s
	w.names = append(w.names, args[0])
}

func (w *world) task(name string) *scripted {
	w.t.Helper()
	s := w.tasks[name]
	if s == nil {
		w.t.Fatalf("task %q is not known", name)
	}
	return s
}

// both makes the same call to the pipeline and its shadow, and carries out the pipeline's
// actions.
func (w *world) both(call func(p *pipeline.Pipeline)) output {
	w.t.Helper()
	call(w.pair[0])
	call(w.pair[1])
	out, shadow := drain(w.pair[0]), drain(w.pair[1])
	if a, b := w.render(out), w.render(shadow); a != b {
		w.t.Fatalf("at %s another order of readings gives\n%s\ninstead of\n%s", clock(w.now.at), b, a)
	}
	if !slices.EqualFunc(out.incidents, shadow.incidents, sameCharts) {
		w.t.Fatalf("at %s another order of readings gives other charts", clock(w.now.at))
	}
	for _, f := range out.findings {
		w.found = f.Finding
		w.say(f.Finding)
	}
	w.check(out)
	w.print(out)
	for _, a := range out.actions {
		if w.enforcer == "holds" {
			w.held = append(w.held, a)
			continue
		}
		w.carryOut(a)
	}
	return out
}

func (w *world) carryOut(a plan.Action) {
	w.t.Helper()
	if a.Kind == plan.Uncap {
		if e := w.books[a.ID]; e != nil {
			e.ended = w.now.at
			w.lifted(a.ID, false)
		}
		return
	}
	var err error
	switch e := w.books[a.ID]; {
	case e == nil || a.Kind == plan.Adjust && !e.live:
		return // ended meanwhile
	case w.enforcer == "fails":
		err = errors.New(w.cause)
		delete(w.books, a.ID)
	case a.Kind == plan.Adjust:
		return
	default:
		e.applied = w.now.at
	}
	w.both(func(p *pipeline.Pipeline) { p.Applied(w.now.at, a.ID, err) })
}

// lifted reports the end of a cap. The entry stays, for the flags of samples.
func (w *world) lifted(id string, takenOver bool) {
	w.t.Helper()
	w.books[id].live = false
	w.both(func(p *pipeline.Pipeline) { p.Lifted(w.now.at, id, takenOver) })
}

func (w *world) deliver() {
	held := w.held
	w.held, w.enforcer = nil, "works"
	for _, a := range held {
		w.carryOut(a)
	}
}

func (w *world) takeover(name string) {
	k := w.task(name).Key
	for id, e := range w.books {
		if e.live && e.Task.Key == k {
			e.ended = w.now.at
			w.lifted(id, true)
			return
		}
	}
	w.t.Fatalf("takeover: %s has no cap", name)
}

// second is one step of the loop: Analyse, then Tick.
func (w *world) second() {
	w.t.Helper()
	w.both(func(p *pipeline.Pipeline) { p.Analyse(w.now.at) })
	out := w.both(func(p *pipeline.Pipeline) { p.Tick(w.now.at) })
	if len(out.findings) > 0 {
		w.t.Fatalf("at %s Tick found %+v", clock(w.now.at), out.findings)
	}
	w.checkEnds()
}

// advance steps through the seconds up to and including the given time.
func (w *world) advance(to sample.Millis) {
	w.t.Helper()
	for w.now.at < to {
		w.now.at = min(to, w.now.at.Add(time.Second))
		w.second()
	}
}

// interval feeds the current cells as the next sampling interval.
func (w *world) interval() {
	w.t.Helper()
	from, to := w.now.at, w.now.at.Add(w.every)
	w.advance(to.Add(-time.Second))
	w.now.at = to
	var all []measured
	for _, name := range w.names {
		if c, ok := w.now.cells[name]; ok && !c.absent && !w.tasks[name].gone {
			all = append(all, w.measure(name, c, from, to))
		}
	}
	shuffled := slices.Clone(all)
	w.rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	of := map[*pipeline.Pipeline][]measured{w.pair[0]: all, w.pair[1]: shuffled}
	w.both(func(p *pipeline.Pipeline) {
		iv := p.Begin(w.signal, to, w.every)
		for _, m := range of[p] {
			iv.Add(m.subject, m.Measurement)
		}
		iv.End(to)
	})
	w.second()
}

type measured struct {
	subject *pipeline.Subject
	pipeline.Measurement
}

// measure is what the agent would measure of a cell; a cap limits the usage.
func (w *world) measure(name string, c cell, from, to sample.Millis) measured {
	s := w.tasks[name]
	m := measured{&pipeline.Subject{Task: s.Task, Spec: s.spec}, pipeline.Measurement{CPU: c.usage, Cost: c.cost, Flags: c.flags, Extras: &sample.Extras{}}}
	for _, e := range w.books {
		if e.Task.Key == s.Key && e.applied != 0 && e.applied < to && (e.ended == 0 || e.ended > from) {
			m.Flags |= sample.Capped
			most := e.Rate
			if !e.IO.IsZero() {
				most = float64(e.IO.Ops)
			}
			m.CPU = min(m.CPU, most)
		}
	}
	if w.signal.Load.PerOp > 0 { // its pressure is what a cell gives as usage
		m.Extras.Set(w.signal.Load.Ops, m.CPU*w.every.Seconds())
	}
	if c.flags&sample.Stolen != 0 {
		m.Extras.Set(sample.StolenShare, 0.9)
	}
	if c.self {
		m.Extras.Set(sample.WaitSelf, 10*m.CPU*w.every.Seconds())
		m.Extras.Set(sample.WaitThrottled, 0)
	}
	if c.above {
		m.Flags |= sample.Throttled
		m.HeldBy = "/pod"
	}
	return m
}

func (w *world) setMode(text string) {
	m, err := plan.ParseMode(text)
	if err != nil {
		w.t.Fatal(err)
	}
	w.policy.Mode = m
	w.both(func(p *pipeline.Pipeline) { p.SetMode(w.now.at, m) })
	if got := w.pair[0].Policy(); got != w.policy {
		w.t.Fatalf("policy is %+v, want %+v", got, w.policy)
	}
}

func (w *world) gone(name string) {
	k := w.task(name).Key
	w.tasks[name].gone = true
	w.both(func(p *pipeline.Pipeline) {
		p.Gone(w.now.at, k)
		p.Forget(k)
	})
}

func (w *world) stop() {
	w.both(func(p *pipeline.Pipeline) { p.Stop(w.now.at) })
}

// operator executes cap and uncap.
func (w *world) operator(verb string, args []string) {
	task, by, why, incident := w.task(args[0]).Task, "ann", "a test", ""
	terms := command.Terms{Rate: 0.1, For: command.Duration(5 * time.Minute)}
	for _, arg := range args[1:] {
		switch k, v, _ := strings.Cut(arg, "="); k {
		case "rate":
			terms.Rate = w.number(v)
		case "for":
			terms.For = command.Duration(w.duration(v))
		case "by":
			by = v
		case "why":
			why = v
		case "for-victim": // the cap names its open incident
			for _, inc := range w.pair[0].Open() {
				if inc.Victim.Name == sample.TaskName(v) {
					incident = inc.ID
				}
			}
		default:
			w.t.Fatalf("%s: %q", verb, arg)
		}
	}
	var err error
	out := w.both(func(p *pipeline.Pipeline) {
		if verb == "uncap" {
			err = p.Uncap(w.now.at, task.Key, why)
		} else {
			_, err = p.Cap(w.now.at, task, terms, incident, by, why)
		}
	})
	if err != nil && (!errors.Is(err, plan.ErrRefused) || len(out.actions)+len(out.incidents) > 0) {
		w.t.Fatalf("%v with %+v", err, out)
	}
	if err != nil {
		fmt.Fprintf(&w.out, "%s %v\n", clock(w.now.at), err)
	}
}

// end stops the pipeline and checks that nothing is left.
func (w *world) end() {
	w.t.Helper()
	w.stop()
	w.deliver()
	for id, e := range w.books {
		if e.live {
			w.t.Errorf("cap %s of %s is in force after the end", id, e.Task.Name)
		}
	}
	if left := w.pair[0].Caps(); len(left) > 0 {
		w.t.Errorf("the planner still holds %+v", left)
	}
	w.out.Reset()
}
