package pipeline

import (
	"math"
	"time"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// Subject is a task as one signal sees it: what its samples are judged by and teach.
// The host keeps one for each task, signal and Key, and changes Task as that changes.
type Subject struct {
	Task sample.Task
	Key  spec.Key
	// Spec is what it was judged by last; where nothing is learnt, what it is to be
	// judged by.
	Spec spec.Spec

	book *spec.Book    // of Key, once there is one
	held sample.Millis // the newest sample that is held back, 0 if there can be none
}

// Measurement is what an interval said of one task.
type Measurement struct {
	CPU    float64 // CPU-s/s
	Cost   float64 // in the signal's unit; NaN if only the usage is known
	Flags  sample.Flags
	Extras *sample.Extras // nil for none
	// HeldBy is the cgroup above the task that ran out of CPU quota, where the flag
	// Throttled is of that and not of the task's own.
	HeldBy string
	// Reach are the numbered resources of the signal's domain that the task can
	// use; nil if not known, which reaches everything.
	Reach sample.Set
	// Served are who was served while the task waited (detect.Reading.Served).
	Served []detect.Served
}

// Of is what a sample says; how a task was held and what it reaches is in no sample.
func Of(s *sample.Sample) Measurement {
	return Measurement{CPU: float64(s.CPU), Cost: float64(s.Cost), Flags: s.Flags, Extras: &s.Extras}
}

// Interval collects what one interval said of a machine's tasks for one signal.
type Interval struct {
	pipeline *Pipeline
	signal   sample.Signal
	at       sample.Millis
	length   time.Duration
	apart    bool            // costs leave out waiting on itself and on the own quota, whatever was counted
	served   []detect.Served // of all readings, s/s
	readings []detect.Reading
	subjects []*Subject
}

// Begin starts an interval of a signal that ended at the given time and was so long.
// Until its End it is the only one of that signal.
func (p *Pipeline) Begin(signal sample.Signal, at sample.Millis, length time.Duration) *Interval {
	iv := p.intervals[signal.Name]
	if iv == nil {
		iv = &Interval{pipeline: p}
		p.intervals[signal.Name] = iv
	}
	*iv = Interval{pipeline: p, signal: signal, at: at, length: length, apart: !signal.Domain.OfCPUs() || signal.Name.OfMachine(),
		served: iv.served[:0], readings: iv.readings[:0], subjects: iv.subjects[:0]}
	return iv
}

// At is when the interval ended.
func (iv *Interval) At() sample.Millis { return iv.at }

// Len is how many measurements were added.
func (iv *Interval) Len() int { return len(iv.readings) }

// Reading is what was made of the i-th measurement, valid until the next Begin.
func (iv *Interval) Reading(i int) *detect.Reading { return &iv.readings[i] }

// Add takes in what was measured of a task.
func (iv *Interval) Add(s *Subject, m Measurement) {
	var normal *spec.Spec
	if !math.IsNaN(m.Cost) {
		iv.pipeline.spec(s, iv.at)
		normal = &s.Spec
	}
	n := len(iv.readings)
	if n < cap(iv.readings) {
		iv.readings = iv.readings[:n+1]
	} else {
		iv.readings = append(iv.readings, detect.Reading{})
	}
	iv.subjects = append(iv.subjects, s)
	r, sig := &iv.readings[n], &iv.signal
	*r = detect.Reading{Task: &s.Task, Spec: normal, CPU: m.CPU, Cost: m.Cost, Pressure: m.CPU, Flags: m.Flags, HeldBy: m.HeldBy, Reach: m.Reach,
		OwnApart: iv.apart}
	if x := m.Extras; x != nil {
		r.Rate, r.Pressure = sig.Rate(x, iv.length), sig.PressureOf(m.CPU, x, iv.length)
		if self, ok := x.Get(sample.WaitSelf); ok {
			// Less CPU time than a millisecond counts as one, as it does in the cost.
			r.Self = self / max(m.CPU*iv.length.Seconds(), 1e-3)
		}
		if _, ok := x.Get(sample.WaitThrottled); ok {
			r.OwnApart = true
		}
	} else if sig.Load.PerOp > 0 {
		r.Pressure = 0
	}
	if m.Served != nil {
		iv.account(r, &m)
	}
	if sig.Name.OfMachine() && normal != nil {
		r.Pressure = 0 // what is measured is the machine: it presses on nothing
	}
	switch {
	case sig.Domain == sample.Elsewhere:
		r.Flags, r.Stolen = r.Flags|sample.Stolen, 1 // its cost is stolen time
	case m.Flags&sample.Stolen != 0:
		r.Stolen = iv.pipeline.config.Detect.StolenShare // at least, says the flag
		if m.Extras != nil {
			if share, ok := m.Extras.Get(sample.StolenShare); ok {
				r.Stolen = share
			}
		}
	}
}

// account makes rates of what is known of who was served while a task waited. For the
// CPUs' queues the wait is the cost; for the others it is what was waited, without the
// time in which the task itself was served.
func (iv *Interval) account(r *detect.Reading, m *Measurement) {
	length := iv.length.Seconds()
	if length <= 0 || math.IsNaN(m.Cost) {
		return
	}
	count := func(e sample.Extra) float64 {
		if m.Extras == nil {
			return 0
		}
		n, _ := m.Extras.Get(e)
		return n / length
	}
	switch iv.signal.Domain {
	case sample.SharedCPU:
		r.Waited = m.Cost * m.CPU
		if waited := count(sample.WaitOther); waited > 0 {
			r.Waited = waited
		}
		r.Niced = count(sample.WaitNiced)
		r.Wanted, r.Demand = m.CPU+r.Waited, m.CPU*(1+r.Self)
	case sample.SharedDevice:
		r.Waited, r.Wanted, r.Demand = count(sample.WaitOther), count(sample.IOTime), count(sample.IOOps)
	case sample.SharedInterface:
		r.Waited, r.Wanted, r.Demand = count(sample.WaitOther), count(sample.NetWait), count(sample.NetPackets)
	default:
		return
	}
	if iv.served == nil {
		iv.served = make([]detect.Served, 0, len(m.Served)) // nil would be: not counted
	}
	from := len(iv.served)
	for _, s := range m.Served {
		s.Time /= length
		iv.served = append(iv.served, s)
	}
	r.Served = iv.served[from:len(iv.served):len(iv.served)]
}

// spec finds what a subject is judged by now.
func (p *Pipeline) spec(s *Subject, at sample.Millis) {
	h := p.config.History
	if h == nil {
		return
	}
	if s.book == nil {
		s.book = h.Find(s.Key)
	}
	now := spec.Spec{Key: s.Key}
	if s.book != nil {
		now = s.book.Spec(at)
	}
	if p.config.Given != nil {
		if given, ok := p.config.Given(s.Key, at); ok {
			now = given
		}
	}
	if s.Spec != now {
		s.Spec = now
	}
}

// End has the interval judged, in open incidents followed, and learnt from. It
// returns a verdict for each measurement, in their order, valid until the next End.
// Intervals of a signal come in order of time; one that does not is ignored as a whole.
func (iv *Interval) End(now sample.Millis) []detect.Verdict {
	p := iv.pipeline
	verdicts := p.detector.Observe(iv.signal, iv.at, iv.readings)
	p.planner.Interval(now, iv.signal.Name, iv.at, iv.readings, verdicts)
	p.charts.extend(iv, verdicts)
	if p.config.History != nil {
		for i := range verdicts {
			if verdicts[i].Sane {
				p.learn(iv.subjects[i], iv.at, &iv.readings[i], &verdicts[i])
			}
		}
	}
	return verdicts
}

// learn lets a sample teach its job's spec, unless it may belong to an incident: an
// outlier is held back until none has come of it, and while the task is a victim
// nothing is learnt, unless it changed itself for good.
func (p *Pipeline) learn(s *Subject, at sample.Millis, r *detect.Reading, v *detect.Verdict) {
	h, task := p.config.History, r.Task.Key
	switch {
	case p.config.LearnIncidents || p.planner.Follows(s.Key.Signal, task):
	case v.Anomaly || p.planner.InIncident(s.Key.Signal, task):
		h.Discard(s.Key, task)
		s.held = 0
		return
	case v.Outlier:
		h.Hold(s.Key, task, at, r.CPU, r.Cost, r.Self)
		s.held = at
		return
	case s.held != 0: // searching for what cannot be there is expensive
		before := at.Add(-p.config.Detect.OutlierWindow)
		h.Release(s.Key, task, before)
		if s.held < before {
			s.held = 0
		}
	}
	if s.book != nil {
		s.book.Add(task, at, r.CPU, r.Cost, r.Self)
	} else {
		h.Add(s.Key, task, at, r.CPU, r.Cost, r.Self)
	}
}
