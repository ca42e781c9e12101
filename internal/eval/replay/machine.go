package replay

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// machine stands for the agent of one machine: a pipeline that receives one interval at
// a time.
type machine struct {
	name     string
	player   *Replayer
	pipeline *pipeline.Pipeline
	first    sample.Millis // end of the first interval
	at       sample.Millis // end of the interval that is being collected
	streams  []*stream
	tasks    map[sample.TaskName]*task
	order    []*task // in the newest interval's order: the next interval mostly has the same
	cursor   int
	swept    sample.Millis
	seq      uint64
	served   []detect.Served // of all samples of the interval
}

// stream collects the interval of one signal.
type stream struct {
	signal   sample.Signal
	interval *pipeline.Interval // nil: no sample yet
	views    []*view            // of the interval's samples
}

// task is a task of the recording.
type task struct {
	id    sample.Task
	inner []*task // in its cgroup, by name
	seen  sample.Millis
	views []*view // by stream
	of    *Job    // that has it among its Tasks
}

// view is the part of a task that depends on the signal.
type view struct {
	pipeline.Subject
	variant string        // of the samples
	at      sample.Millis // of the newest of them
	bin     int
	job     *Job
	costs   *Costs // nil: not collected
}

func (p *Replayer) machine(name string) *machine {
	m := p.machines[name]
	if m == nil {
		c := pipeline.Config{Machine: name, Detect: p.options.Detect, Policy: p.options.Policy, Charts: true}
		if p.options.Specs == nil {
			c.History = spec.NewHistory(p.options.Spec)
		}
		m = &machine{name: name, player: p, pipeline: pipeline.New(c), tasks: map[sample.TaskName]*task{}, at: math.MinInt64, served: []detect.Served{}}
		p.machines[name] = m
	}
	return m
}

// add adds a sample. Samples must be in order of time, those of all signals of one
// interval together; a late one is counted and skipped, and so is a second one of a task at one time.
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
	if st.interval == nil {
		st.interval = m.pipeline.Begin(st.signal, s.TS, m.player.options.Sampling)
	}
	v := m.view(s, index)
	if v.at == s.TS { // twice as many outliers would make an anomaly
		m.player.result.Twice++
		return
	}
	v.at = s.TS
	measured := pipeline.MeasurementOf(s)
	if s.Served != nil {
		measured.Served = m.serve(s.Served, s.TS)
	}
	st.interval.Add(&v.Subject, measured)
	st.views = append(st.views, v)
}

// serve returns the tasks that were served, by their keys. A name may appear before its
// own sample, or have no sample in this interval.
func (m *machine) serve(all []sample.Served, at sample.Millis) []detect.Served {
	start := len(m.served)
	for i := range all {
		s := &all[i]
		by := detect.Outside().Key
		if s.By != detect.OutsideName {
			t := m.tasks[s.By]
			if t == nil {
				t = m.create(sample.Task{Name: s.By})
				m.order = append(m.order, t)
			}
			m.see(t, at)
			by = t.id.Key
		}
		m.served = append(m.served, detect.Served{By: by, Time: s.Time, Fair: s.Fair})
	}
	return m.served[start:len(m.served):len(m.served)]
}

// see notes that a task has a sample or is named in one, and how long after the one before.
func (m *machine) see(t *task, at sample.Millis) {
	if gap := at.Sub(t.seen); t.seen != 0 && gap > 0 {
		r, step := &m.player.result, cmp.Or(m.player.options.Step, time.Minute)
		r.Gaps++
		if gap < step/2 {
			r.Near++
		} else if gap > 2*step {
			r.Far++
		}
	}
	t.seen = at
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

// view returns the view of the sample's task. Most intervals have the same tasks in the
// same order, and their names are the same strings in memory, so the task after the
// previous one is tried first.
func (m *machine) view(s *sample.Sample, index int) *view {
	var t *task
	if m.cursor < len(m.order) && m.order[m.cursor].id.Name == s.Task {
		t = m.order[m.cursor]
		m.cursor++
	} else {
		t = m.task(s)
	}
	m.see(t, s.TS)
	t.id.Class = s.Class
	for len(t.views) <= index {
		t.views = append(t.views, nil)
	}
	v := t.views[index]
	bin := m.player.options.bin(s)
	if v == nil || v.variant != s.Variant || v.Key.Platform != s.Platform || t.id.Job != s.Job || v.bin != bin {
		j := m.player.job(s.Job)
		if t.of != j {
			t.of = j
			j.Tasks++
		}
		t.id.Job = s.Job
		v = &view{Subject: pipeline.Subject{Task: t.id, Key: m.player.options.key(s)}, variant: s.Variant, at: math.MinInt64, bin: bin, job: j}
		v.Spec = m.player.options.Specs[v.Key]
		if m.player.costs != nil {
			v.costs = m.player.costs.find(s.Job, s.Signal)
		}
		t.views[index] = v
	}
	v.Task.Class, v.Task.Holds = s.Class, t.holds()
	return v
}

func (m *machine) task(s *sample.Sample) *task {
	t := m.tasks[s.Task]
	if t == nil {
		t = m.create(sample.Task{Name: s.Task, Job: s.Job, Class: s.Class})
		if s.Task == detect.OutsideName {
			t.id = detect.Outside()
		}
	}
	if i := slices.Index(m.order, t); i >= 0 {
		m.cursor = i + 1
	} else {
		m.order = slices.Insert(m.order, min(m.cursor, len(m.order)), t)
		m.cursor++
	}
	return t
}

func (t *task) hold(inner *task) {
	i, _ := slices.BinarySearchFunc(t.inner, inner, func(a, b *task) int { return strings.Compare(string(a.id.Name), string(b.id.Name)) })
	t.inner = slices.Insert(t.inner, i, inner)
}

// holds is sample.Task.Holds, as far as a sample says: it has the class, and not whether a task is
// protected or never-cap.
func (t *task) holds() sample.TaskName {
	for _, o := range t.inner {
		if o.id.Spared() {
			return o.id.Name
		}
	}
	return ""
}

// create adds a task, with the next key.
func (m *machine) create(id sample.Task) *task {
	m.seq++
	id.Key = sample.TaskKey{Inode: m.seq}
	t := &task{id: id}
	for _, o := range m.tasks {
		switch {
		case o.id.Contains(&t.id):
			o.hold(t)
		case t.id.Contains(&o.id):
			t.hold(o)
		}
	}
	m.tasks[id.Name] = t
	return t
}

// flush ends the collected interval: it is judged and analysed, and the pipeline advances
// to the beginning of the next one.
func (m *machine) flush(next sample.Millis) {
	at := m.at
	if at == math.MinInt64 {
		m.first = next
		return
	}
	m.player.result.span(at)
	m.pipeline.Tick(at)
	for _, perWork := range []bool{true, false} { // the order that the pipeline requires
		for _, st := range m.streams {
			if st.interval == nil || st.signal.PerWork != perWork {
				continue
			}
			for i, v := range st.interval.End(at) {
				r := st.interval.Reading(i)
				m.player.count(m, st.views[i], r, &v)
				if report := m.player.options.Judged; report != nil && v.Judged && v.Sane {
					report(JudgedSample{m.name, r.Task.Name, st.signal.Name, at, v.Outlier})
				}
			}
			st.interval, st.views = nil, st.views[:0]
		}
	}
	m.cursor, m.served = 0, m.served[:0]
	for m.pipeline.Analyse(at) {
	}
	m.pipeline.Advance(at, next)
	m.sweep(at)
	m.drain()
}

// drain collects the pipeline's findings and closed incidents. No action is carried out.
func (m *machine) drain() {
	for {
		r, more := m.pipeline.Ready()
		if !more {
			return
		}
		for i := range r.Findings {
			m.player.found(m, &r.Findings[i])
			if m.player.options.Found != nil {
				m.player.options.Found(m.name, &r.Findings[i])
			}
		}
		for i := range r.Incidents {
			if r.Incidents[i].Closed != 0 {
				m.player.closed(&r.Incidents[i])
			}
		}
	}
}

// sweep forgets tasks that had no sample for the length of a window.
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
		delete(m.tasks, t.id.Name)
		m.pipeline.Gone(at, t.id.Key)
		m.pipeline.Forget(t.id.Key)
		return true
	})
	for _, t := range m.tasks {
		t.inner = slices.DeleteFunc(t.inner, func(o *task) bool { return m.tasks[o.id.Name] != o })
	}
}

// finish ends the recording. Open incidents are kept in their current state.
func (m *machine) finish() {
	m.flush(m.at.Add(m.player.options.Detect.Window))
	m.player.result.Watched += m.at - m.first
	open := m.pipeline.Open()
	for i := range open {
		m.player.closed(&open[i])
	}
}
