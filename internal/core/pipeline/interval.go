package pipeline

import (
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Subject is a task as one signal sees it: what its samples are judged by and teach. The
// host keeps one for each task, signal and Key, and updates Task when that changes.
type Subject struct {
	Task sample.Task
	Key  spec.Key
	// Spec is what the task was last judged by; if nothing is learnt, what it is to be judged by.
	Spec spec.Spec

	book *spec.KeyHistory // of Key, once there is one
	// held are outliers that do not teach the spec until it is known that no incident followed.
	held []heldSample
}

// Missing is how many more samples the task's own history needs until a spec is ready
// (spec.KeyHistory.Missing); 0 if that is not known.
func (s *Subject) Missing() int {
	if s.book == nil {
		return 0
	}
	return s.book.Missing()
}

type heldSample struct {
	at              sample.Millis
	cpu, cost, self float64
	flags           sample.Flags // Throttled only if the cost contains that
}

// maxHeld bounds the samples held back for one task: more than an anomaly needs.
const maxHeld = 64

// Measurement is the result of an interval for one task.
type Measurement struct {
	CPU    float64 // CPU-s/s
	Inner  bool    // its task is part of another one, which is measured too
	Cost   float64 // in the signal's unit; NaN if only the usage is known
	Flags  sample.Flags
	Extras *sample.Extras // nil for none
	// HeldBy is the cgroup above the task that exhausted its CPU quota, if the flag
	// Throttled is due to that and not to the task's own quota.
	HeldBy string
	// Reach are the numbered resources of the signal's domain that the task can use; nil
	// if not known, which means all of them.
	Reach sample.Set
	// Served are the tasks served while the task waited (detect.Reading.Served).
	Served []detect.Served
}

// MeasurementOf is the measurement in a sample. A sample contains neither HeldBy nor Reach.
func MeasurementOf(s *sample.Sample) Measurement {
	return Measurement{CPU: float64(s.CPU), Cost: float64(s.Cost), Flags: s.Flags, Extras: &s.Extras}
}

// Interval collects the measurements of a machine's tasks in one interval for one signal.
type Interval struct {
	pipeline *Pipeline
	signal   sample.Signal
	at       sample.Millis
	length   time.Duration
	ownApart bool            // costs exclude waits for itself and for the own quota, whatever was counted
	served   []detect.Served // of all readings, s/s
	readings []detect.Reading
	subjects []*Subject
}

// Begin starts an interval of a signal with the given end and length. Until its End it is
// the only one of that signal.
func (p *Pipeline) Begin(signal sample.Signal, at sample.Millis, length time.Duration) *Interval {
	iv := p.intervals[signal.Name]
	if iv == nil {
		iv = &Interval{pipeline: p}
		p.intervals[signal.Name] = iv
	}
	*iv = Interval{pipeline: p, signal: signal, at: at, length: length, ownApart: !signal.Domain.OfCPUs() || signal.Name.OfMachine(),
		served: iv.served[:0], readings: iv.readings[:0], subjects: iv.subjects[:0]}
	return iv
}

// At is when the interval ended.
func (iv *Interval) At() sample.Millis { return iv.at }

// Len is the number of measurements that were added.
func (iv *Interval) Len() int { return len(iv.readings) }

// Reading is the reading of the i-th measurement, valid until the next Begin.
func (iv *Interval) Reading(i int) *detect.Reading { return &iv.readings[i] }

// Add adds the measurement of a task.
func (iv *Interval) Add(s *Subject, m Measurement) {
	var normal *spec.Spec
	m.CPU = amount(m.CPU)
	if !math.IsNaN(m.Cost) {
		iv.pipeline.spec(s, iv.at)
		normal = &s.Spec
	}
	iv.subjects = append(iv.subjects, s)
	iv.readings = append(iv.readings, detect.Reading{Task: &s.Task, Spec: normal, CPU: m.CPU, Inner: m.Inner, Cost: m.Cost, Pressure: m.CPU, Flags: m.Flags, HeldBy: m.HeldBy,
		Reach: m.Reach, OwnApart: iv.ownApart})
	r, sig := &iv.readings[len(iv.readings)-1], &iv.signal
	if x := m.Extras; x != nil {
		r.Rate, r.Pressure = sig.Rate(x, iv.length), sig.PressureOf(m.CPU, x, iv.length)
		if self, ok := x.Get(sample.WaitSelf); ok {
			// Less CPU time than a millisecond counts as one, as in the cost.
			r.SelfKnown, r.Self = true, amount(self)/max(m.CPU*iv.length.Seconds(), 1e-3)
		}
		if _, ok := x.Get(sample.WaitThrottled); ok {
			r.OwnApart = true
		}
		if n, ok := x.Get(sample.Instructions); ok && n > 0 {
			misses, _ := x.Get(sample.LLCMisses)
			r.Misses = misses / n
		}
	} else if sig.Load.PerOp > 0 {
		r.Pressure = 0
	}
	iv.account(r, &m)
	if sig.Name.OfMachine() && normal != nil {
		r.Pressure = 0 // the machine itself is measured: it exerts no pressure
	}
	switch {
	case sig.Domain == sample.OtherVM:
		r.Flags, r.Stolen = r.Flags|sample.Stolen, 1 // its cost is stolen time
	case m.Flags&sample.Stolen != 0:
		r.Stolen = iv.pipeline.config.Detect.StolenShare // the flag means at least this share
		if m.Extras != nil {
			if share, ok := m.Extras.Get(sample.StolenShare); ok {
				r.Stolen = share
			}
		}
	}
}

// amount returns a number that was counted; 0 for what no count gives, as in a damaged recording: one would
// be in all sums from then on, and an incident with it could not be written.
func amount(x float64) float64 {
	if x >= 0 && x <= stat.MaxMeasured {
		return x
	}
	return 0
}

// account turns a task's wait, and what is known of the tasks that were served meanwhile, into
// rates. For the CPUs' queues the wait is the cost. For the others it is the waiting time
// without the time in which the task itself was served.
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
		return amount(n) / length
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
	if m.Served == nil {
		return
	}
	if iv.served == nil {
		iv.served = make([]detect.Served, 0, len(m.Served)) // nil would mean: not counted
	}
	from := len(iv.served)
	for _, s := range m.Served {
		s.Time, s.Fair = amount(s.Time)/length, amount(s.Fair)
		iv.served = append(iv.served, s)
	}
	r.Served = iv.served[from:len(iv.served):len(iv.served)]
}

// spec sets the spec by which a subject is judged now.
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
	if p.config.External != nil {
		if given, ok := p.config.External(s.Key, at); ok {
			now = given
		}
	}
	if s.Spec != now {
		s.Spec = now
	}
}

// End judges the interval, updates open incidents with it, and learns from it. It returns
// a verdict for each measurement, in their order, valid until the next End. Intervals of
// a signal come in order of time; one that does not is ignored as a whole.
func (iv *Interval) End(now sample.Millis) []detect.Verdict {
	p := iv.pipeline
	verdicts := p.Observe(iv.signal, iv.at, iv.readings)
	p.Interval(now, iv.signal.Name, iv.at, iv.readings, verdicts)
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

// learn adds a sample to its job's spec, unless it may be of an incident. An outlier is held back until
// it is known that no incident followed; then it enters unchanged, so a real shift of the job is
// followed. While the task is a victim of a neighbour nothing is learnt, unless the task changed itself
// for good; while it has an incident of its own quota, nothing of intervals with throttling that is in
// the cost; in one of stolen time, nothing of those with that. A provisional spec withholds nothing: it
// may be wrong.
func (p *Pipeline) learn(s *Subject, at sample.Millis, r *detect.Reading, v *detect.Verdict) {
	task, now := r.Task.Key, heldSample{at, r.CPU, r.Cost, r.Self, r.Flags}
	if r.OwnApart {
		now.flags &^= sample.Throttled
	}
	if !r.SelfKnown {
		now.self = math.NaN()
	}
	explained := sample.Flags(0) // of intervals that an open incident explains
	if p.Suffers(s.Key.Signal, task, detect.OwnQuota) {
		explained |= sample.Throttled
	}
	if p.Suffers(s.Key.Signal, task, detect.Steal) {
		explained |= sample.Stolen
	}
	if explained != 0 { // an incident followed
		s.held = slices.DeleteFunc(s.held, func(x heldSample) bool { return x.flags&explained != 0 })
	}
	switch {
	case p.config.LearnIncidents || r.Spec != nil && r.Spec.Provisional || p.Follows(s.Key.Signal, task):
	case v.Anomaly || p.InIncident(s.Key.Signal, task):
		s.held = s.held[:0]
		return
	case now.flags&explained != 0:
		return
	case v.Outlier:
		if len(s.held) < maxHeld {
			s.held = append(s.held, now)
		}
		return
	default:
		before := at.Add(-p.config.Detect.OutlierWindow)
		for len(s.held) > 0 && s.held[0].at < before {
			p.teach(s, task, s.held[0])
			s.held = slices.Delete(s.held, 0, 1)
		}
	}
	p.teach(s, task, now)
}

func (p *Pipeline) teach(s *Subject, task sample.TaskKey, x heldSample) {
	if s.book != nil {
		s.book.Add(task, x.at, x.cpu, x.cost, x.self)
	} else {
		p.config.History.Add(s.Key, task, x.at, x.cpu, x.cost, x.self)
		s.book = p.config.History.Find(s.Key)
	}
}
