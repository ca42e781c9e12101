package replay

import (
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// machine is what the agent of one machine would be: a detector, a planner and
// a history, fed an interval at a time.
type machine struct {
	name     string
	player   *Player
	detector *detect.Detector
	planner  *plan.Planner
	history  *spec.History
	at       sample.Millis // end of the interval that is being collected
	streams  []*stream
	tasks    map[sample.TaskName]*task
	order    []*task // as they came in the newest interval: the next comes in the same
	cursor   int
	swept    sample.Millis
	seq      uint64
}

// stream is one signal's interval while it is collected.
type stream struct {
	signal   sample.Signal
	readings []detect.Reading
	of       []*view
}

// task is one that samples came of.
type task struct {
	who   sample.Task
	seen  sample.Millis
	views []*view // by stream
}

// view is what a task is to one signal.
type view struct {
	task    *task
	key     spec.Key
	variant string
	bin     int
	spec    spec.Spec     // as it stands, or of the whole recording
	asked   sample.Millis // when spec was last
	held    sample.Millis // the newest sample that was held back, 0 if there can be none
	job     *Job
	costs   *Costs // nil: not collected
}

func (p *Player) machine(name string) *machine {
	m := p.machines[name]
	if m == nil {
		m = &machine{name: name, player: p, detector: detect.New(p.options.Detect),
			planner: plan.New(name, p.options.Detect.Rule, p.options.Policy), history: spec.NewHistory(p.options.Spec),
			tasks: map[sample.TaskName]*task{}, at: math.MinInt64}
		p.machines[name] = m
	}
	return m
}

// add takes in a sample; those of an interval come together, whatever their
// signal, and intervals in order of time.
func (m *machine) add(s *sample.Sample) {
	switch {
	case s.TS < m.at:
		m.player.result.Late++
		return
	case s.TS > m.at:
		m.flush(s.TS)
		m.at = s.TS
	}
	st, index := m.stream(s)
	if st == nil {
		m.player.result.UnknownSignal++
		return
	}
	v := m.view(s, index)
	st.readings = append(st.readings, m.reading(s, v))
	st.of = append(st.of, v)
}

func (m *machine) stream(s *sample.Sample) (*stream, int) {
	for i, st := range m.streams {
		if st.signal.Name == s.Signal {
			return st, i
		}
	}
	sig, ok := m.player.options.signal(s.Signal)
	if !ok {
		return nil, 0
	}
	m.streams = append(m.streams, &stream{signal: sig})
	return m.streams[len(m.streams)-1], len(m.streams) - 1
}

// view finds the sample's task. Tasks mostly come in the same order in every
// interval, and their names are mostly the same strings in memory.
func (m *machine) view(s *sample.Sample, index int) *view {
	var t *task
	if m.cursor < len(m.order) && m.order[m.cursor].who.Name == s.Task {
		t = m.order[m.cursor]
		m.cursor++
	} else {
		t = m.task(s)
	}
	t.seen = s.TS
	t.who.Class = s.Class
	for len(t.views) <= index {
		t.views = append(t.views, nil)
	}
	v := t.views[index]
	bin := m.player.options.bin(s)
	if v == nil || v.variant != s.Variant || v.key.Platform != s.Platform || t.who.Job != s.Job || v.bin != bin {
		j := m.player.job(s.Job)
		if v == nil || v.job != j {
			j.Tasks++
		}
		t.who.Job = s.Job
		v = &view{task: t, key: m.player.options.key(s), variant: s.Variant, bin: bin, job: j}
		v.spec = m.player.options.Specs[v.key]
		if m.player.costs != nil {
			v.costs = m.player.costs.find(s.Job, s.Signal)
		}
		t.views[index] = v
	}
	return v
}

func (m *machine) task(s *sample.Sample) *task {
	t := m.tasks[s.Task]
	if t == nil {
		m.seq++
		t = &task{who: sample.Task{Key: sample.TaskKey{Inode: m.seq}, Name: s.Task, Job: s.Job, Class: s.Class}}
		if s.Task == detect.OutsideName {
			t.who = detect.Outside()
		}
		m.tasks[s.Task] = t
	}
	if i := slices.Index(m.order, t); i >= 0 {
		m.cursor = i + 1
	} else {
		m.order = slices.Insert(m.order, min(m.cursor, len(m.order)), t)
		m.cursor++
	}
	return t
}

// reading is the sample as the agent would have had it. What a sample does not
// say is taken as the least that its flags tell: how much was stolen is the
// share at which the flag begins.
func (m *machine) reading(s *sample.Sample, v *view) detect.Reading {
	o := &m.player.options
	r := detect.Reading{Task: v.task.who, Cost: float64(s.Cost), CPU: float64(s.CPU), Pressure: float64(s.CPU),
		Rate: rate(s, o), Flags: s.Flags, Spec: v.spec}
	if ops, ok := s.Extras.Get(sample.IOOps); ok && s.Signal == sample.IO {
		bytes, _ := s.Extras.Get(sample.IOBytes)
		r.Pressure = (ops + bytes/sample.RequestBytes) / o.Sampling.Seconds()
	}
	if s.Flags&sample.Stolen != 0 {
		r.Stolen = o.Detect.StolenShare
	}
	_, r.OwnApart = s.Extras.Get(sample.WaitThrottled)
	if self, ok := s.Extras.Get(sample.WaitSelf); ok && s.CPU > 0 {
		r.Self = self / (float64(s.CPU) * o.Sampling.Seconds())
	}
	if o.Specs == nil && s.Cost == s.Cost {
		r.Spec = m.spec(v, s.TS)
	}
	return r
}

// spec is what was learnt of a task's job. A ready spec stands for Every, so it
// is asked for only then: looking it up is dear where samples are many.
func (m *machine) spec(v *view, at sample.Millis) spec.Spec {
	p := &m.player.options.Spec
	if v.spec.State != spec.Ready || at.Sub(v.spec.Updated) >= p.Every || at.Sub(v.asked) > p.StaleAfter {
		v.spec, _ = m.history.Lookup(v.key, at)
	}
	v.asked = at
	return v.spec
}

// flush lets the machine's agent take in the interval that was collected, and
// do what it would have done until the next one.
func (m *machine) flush(next sample.Millis) {
	at := m.at
	if at == math.MinInt64 {
		return
	}
	m.player.result.span(at)
	m.note(m.planner.Tick(at))
	for _, st := range m.streams {
		if len(st.readings) == 0 {
			continue
		}
		verdicts := m.detector.Observe(st.signal, at, st.readings)
		m.note(m.planner.Interval(at, st.signal.Name, at, st.readings, verdicts))
		for i := range st.readings {
			m.player.count(st.of[i], &st.readings[i], &verdicts[i])
			if m.player.options.Specs == nil {
				m.learn(st.of[i], at, &st.readings[i], &verdicts[i])
			}
		}
		st.readings, st.of = st.readings[:0], st.of[:0]
	}
	m.cursor = 0
	m.analyse(at)
	m.pass(at, next)
	m.sweep(at)
}

// pass lets the time until the next interval go by, in the agent's steps. Steps
// at which nothing would happen are passed over.
func (m *machine) pass(at, next sample.Millis) {
	pace := max(m.player.options.Detect.Pace, time.Millisecond)
	step := sample.Millis(pace.Milliseconds())
	for now := at + step; now < next; now += step {
		if !m.detector.Waiting() {
			due, ok := m.planner.Due()
			if !ok || due >= next {
				return
			}
			if due > now {
				if now += (due - now + step - 1) / step * step; now >= next {
					return
				}
			}
		}
		m.note(m.planner.Tick(now))
		m.analyse(now)
	}
}

// learn is the agent's: a sample teaches its job's spec unless it may belong to
// an incident.
func (m *machine) learn(v *view, at sample.Millis, r *detect.Reading, verdict *detect.Verdict) {
	k, t, h := v.key, v.task.who.Key, m.history
	switch {
	case !verdict.Sane:
	case m.planner.Follows(v.key.Signal, t):
		h.Add(k, t, at, r.CPU, r.Cost, r.Self)
	case verdict.Anomaly || m.planner.InIncident(v.key.Signal, t):
		h.Discard(k, t)
	case verdict.Outlier:
		h.Hold(k, t, at, r.CPU, r.Cost, r.Self)
		v.held = at
	default:
		if v.held != 0 { // looking up that there are none is dear
			before := at.Add(-m.player.options.Detect.OutlierWindow)
			h.Release(k, t, before)
			if v.held < before {
				v.held = 0
			}
		}
		h.Add(k, t, at, r.CPU, r.Cost, r.Self)
	}
}

// analyse works off what the pace allows now.
func (m *machine) analyse(now sample.Millis) {
	for {
		f, ok := m.detector.Next(now)
		if !ok {
			return
		}
		out := m.planner.Finding(now, f, func(k sample.TaskKey) []detect.Point { return m.detector.Window(f.Signal, k) })
		m.player.found(m, &f, out)
		m.note(out)
	}
}

// note follows incidents; nothing of what the planner asks for is done.
func (m *machine) note(out plan.Output) {
	for _, inc := range out.Incidents {
		if inc.Closed != 0 {
			m.player.closed(inc)
		}
	}
}

// sweep forgets tasks that are gone: what gave no sample for a window's length.
func (m *machine) sweep(at sample.Millis) {
	gone := m.player.options.Detect.Window
	if at.Sub(m.swept) < gone {
		return
	}
	m.swept = at
	m.order = slices.DeleteFunc(m.order, func(t *task) bool {
		if at.Sub(t.seen) <= gone {
			return false
		}
		delete(m.tasks, t.who.Name)
		m.detector.Forget(t.who.Key)
		m.history.Forget(t.who.Key)
		m.note(m.planner.Gone(at, t.who.Key))
		return true
	})
}

// finish ends the recording: what is open is written as it stands.
func (m *machine) finish() {
	m.flush(m.at.Add(m.player.options.Detect.Window))
	for _, inc := range m.planner.Open() {
		m.player.closed(inc)
	}
}
