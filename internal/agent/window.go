package agent

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// window is the sampling window that is open, or when the next one will be.
type window struct {
	open     bool
	halved   bool   // its middle is over, or nobody wants to know of it
	number   uint64 // of windows begun
	hurry    bool   // begin with windows that are closer together
	start    time.Time
	next     time.Time
	read     time.Time // when usage was read at the newest one's end
	times    host.CPUTimes
	timesOK  bool
	busy     time.Duration    // of all CPUs in the window; below 0: not known
	outside  float64          // CPU-s/s used outside any task
	caps     []plan.CapState  // in force at the window's start, then at its end
	sources  []counter.Source // that were started
	counted  []counted        // by the source that was stopped last, as roster.order
	others   counter.Reading  // by that source, of what is outside all tasks
	readings []detect.Reading // likewise
}

// counted is what a source counted for a task, if it did.
type counted struct {
	counter.Reading
	ok bool
}

// over and due allow half a tick, so that ticks which drift by a little do not
// make every window a tick longer.
func (w *window) over(now time.Time, c *config.Agent) bool {
	return now.Sub(w.start)+c.Tick/2 >= c.Sampling.Duration
}

// half reports once in a window whether its middle is over.
func (w *window) half(now time.Time, c *config.Agent) bool {
	if !w.open || w.halved || now.Sub(w.start)+c.Tick/2 < c.Sampling.Duration/2 {
		return false
	}
	w.halved = true
	return true
}

func (w *window) due(now time.Time, c *config.Agent) bool {
	return !now.Add(c.Tick / 2).Before(w.next)
}

// nextDue is when one of them is.
func (w *window) nextDue(c *config.Agent) time.Time {
	if !w.open {
		return w.next
	}
	if !w.halved {
		return w.start.Add(c.Sampling.Duration / 2)
	}
	end := w.start.Add(c.Sampling.Duration)
	if off := end.Sub(w.next); off > 0 && off <= c.Tick/2 { // the next one begins where this one ends
		return w.next
	}
	return end
}

func (a *Agent) openWindow(now time.Time) {
	w := &a.window
	if w.next.IsZero() {
		w.next = now
	}
	for !w.next.After(now.Add(a.config.Tick / 2)) {
		w.next = w.next.Add(a.config.Sampling.Period)
	}
	a.followCPUs()
	a.takeSeats()
	// An agent that was restarted while a task suffers has everything it needs
	// to see that but outliers. It takes them half a period apart, so that an
	// anomaly is found again after 70 s and not after 130 s, by default times.
	if w.hurry && w.number < uint64(a.config.Detect.Outliers) {
		soon := now.Add(max(a.config.Sampling.Period/2, a.config.Sampling.Duration+a.config.Tick))
		if soon.Before(w.next) {
			w.next = soon
		}
	}
	w.sources = w.sources[:0]
	for i, s := range a.Sources {
		if a.taxes[i].rests {
			continue
		}
		err := s.Start()
		a.degrade("counting "+string(s.Signal()), err)
		if err == nil {
			w.sources = append(w.sources, s)
		}
	}
	a.markQuotas()
	// Together: starting sources takes long where there is little CPU time, and what
	// is used meanwhile is nobody's in the window.
	w.times, w.timesOK = a.cpuTimes()
	w.start, w.open, w.halved = a.now(), true, true
	w.caps = a.planner.Caps()
	// What an idle task uses between two readings counts for the second. That is
	// nothing as a rule, but the analysis of the window before may have taken long.
	justRead := w.start.Sub(w.read) < a.config.Sampling.Duration/100
	for _, t := range a.roster.order {
		if t.busy() || !justRead {
			_ = t.use() // noted
		}
		t.pressure.begin(t.cgroup)
		if t.looked.IsZero() {
			a.look(now, t)
		}
		w.halved = w.halved && !t.busy()
		t.base, t.counted, t.capped = t.last, true, a.underCap(t)
	}
}

func (a *Agent) cpuTimes() (host.CPUTimes, bool) {
	times, err := a.Machine.CPUTimes()
	a.degrade("reading CPU times", err)
	return times, err == nil
}

// closeWindow ends the window and lets everybody know what it said.
func (a *Agent) closeWindow(now time.Time) {
	w := &a.window
	w.open = false
	a.roster.settle()
	for _, t := range a.roster.order {
		if !t.ended {
			_ = t.use() // noted
		}
	}
	end := a.now()
	w.read = end
	wall := end.Sub(w.start).Seconds()
	stolen := a.stolen(wall)
	contiguous := w.due(now, a.config)
	for _, t := range a.roster.order {
		if !t.ended {
			t.pressure.end(t.cgroup, end.Sub(w.start), contiguous)
		}
	}
	a.lackQuotas()
	w.caps = a.planner.Caps()
	for _, t := range a.roster.order {
		a.measure(t, end, wall, stolen)
	}
	w.outside = a.outside(wall)
	a.overall = a.overall[:0]
	at := sample.At(end)
	for _, s := range w.sources {
		sig, ok := sample.LookupSignal(s.Signal())
		if !ok {
			continue
		}
		if l, ok := s.(interface{ Linger(bool) }); ok {
			l.Linger(contiguous && !a.rests(s)) // else it would go on while it rests
		}
		began := time.Now()
		a.collect(s)
		a.stats.sourceSeconds[sig.Name] += time.Since(began).Seconds()
		if o, ok := s.(counter.Overall); ok {
			a.judgeOverall(sample.At(now), at, sig, o, wall)
		} else {
			a.judge(sample.At(now), at, sig, s.Variant(), stolen)
		}
	}
	a.report(at)
	a.stats.intervals++
	a.roster.dropEnded(a.forget)
	a.jobs.sum(a.roster.order)
	a.snapshot.takeWindow(a)
}

// stolen is the share of the machine's CPU time in the window that the
// hypervisor took (proc(5): steal). The kernel's other figures of the machine in
// the window are read with it.
func (a *Agent) stolen(wall float64) float64 {
	times, ok := a.cpuTimes()
	a.window.busy = -1
	if !ok || !a.window.timesOK {
		return 0
	}
	a.levy(a.window.times, times, wall)
	b, e := a.window.times.Total, times.Total
	a.window.busy = e.Busy() - b.Busy()
	steal := e.Steal - b.Steal
	total := steal + (e.Busy() - b.Busy()) + (e.Idle - b.Idle) + (e.IOWait - b.IOWait)
	if total <= 0 || steal <= 0 {
		return 0
	}
	return float64(steal) / float64(total)
}

// measure works out what the window says of a task whatever the signal.
func (a *Agent) measure(t *task, now time.Time, wall, stolen float64) {
	t.measured = true
	t.cpu = max(0, (t.last.CPU-t.base.CPU).Seconds()/wall)
	t.flags = a.throttled(t, wall)
	if stolen >= a.detector.Params().StolenShare {
		t.flags |= sample.Stolen
	}
	if t.places.Split {
		t.flags |= sample.Split
	}
	t.views, t.notes[noteReading] = t.views[:0], ""
	if t.cpu < idle {
		t.calm = 0 // once it is busy, soon
	}
	if !t.ended && t.dueLook(now) {
		a.lookAgain(now, t)
	}
	t.threads = 0
	if !t.ended && t.cpu >= idle && (a.Record != nil || a.Uplink != nil) {
		if n, err := t.cgroup.Threads(); err == nil {
			t.threads = n
		}
	}
}

// collect stops a source and gathers its readings, those of ended tasks too.
func (a *Agent) collect(s counter.Source) {
	w := &a.window
	n := len(a.roster.order)
	w.counted = slices.Grow(w.counted[:0], n)[:n]
	clear(w.counted)
	err := s.Stop(func(k sample.TaskKey) (time.Duration, bool) {
		t := a.tasks[k]
		if t == nil || !t.counted {
			return 0, false
		}
		return t.last.CPU - t.base.CPU, t.notes[noteUsage] == ""
	}, func(k sample.TaskKey, r counter.Reading) {
		if t := a.tasks[k]; t != nil {
			w.counted[t.index] = counted{r, true}
		}
	})
	a.degrade("counting "+string(s.Signal()), err)
	w.others = counter.Reading{}
	if o, ok := s.(interface{ Others() counter.Reading }); ok {
		w.others = o.Others()
	}
	for i, t := range a.roster.order {
		if r, ok := t.final[s.Signal()]; ok {
			w.counted[i] = counted{r, true}
		}
	}
	a.explain(s.Signal())
}

// explain notes why tasks were not counted. What was taken out because it cost
// the machine too much is a degradation of the agent's own.
func (a *Agent) explain(sig sample.SignalName) {
	w := &a.window
	var refused []error
	for i, t := range a.roster.order {
		err := w.counted[i].Err
		if err == nil {
			continue
		}
		t.notes[noteReading] = string(sig) + ": " + err.Error()
		if rate := (*counter.RateError)(nil); errors.As(err, &rate) && !slices.Contains(refused, err) {
			refused = append(refused, err)
		}
	}
	a.degrade("uprobes for "+string(sig), errors.Join(refused...))
}

// judge hands one signal's interval to the detector, the planner, the specs
// and the trace.
func (a *Agent) judge(now, at sample.Millis, sig sample.Signal, variant string, stolen float64) {
	w := &a.window
	w.readings = w.readings[:0]
	for i, t := range a.roster.order {
		r := detect.Reading{Task: t.Task, Cost: math.NaN(), CPU: t.cpu, Pressure: t.cpu, Stolen: stolen,
			Flags: t.flags, HeldBy: t.heldBy, Reach: t.reach.in(sig.Domain)}
		if !sig.Domain.OfCPUs() {
			r.Pressure, r.Reach, r.OwnApart = w.counted[i].Pressure, w.counted[i].Reach, true
		}
		if c := &w.counted[i]; c.ok && t.counted && t.judges(sig.Name) {
			r.Cost, r.Self, r.Rate = c.Cost, c.Self, c.Rate
			variant := cmp.Or(c.Variant, variant)
			r.Flags |= c.Flags
			_, apart := c.Extras.Get(sample.WaitThrottled)
			r.OwnApart = r.OwnApart || apart
			r.Spec = a.lookup(a.specKey(t, sig.Name, variant), at)
			if math.IsNaN(c.Cost) {
				a.stats.notCounted[sig.Name]++
			}
		}
		w.readings = append(w.readings, r)
	}
	if r, ok := a.outsideReading(sig); ok {
		w.readings = append(w.readings, r)
	}
	verdicts := a.detector.Observe(sig, at, w.readings)
	a.carryOut(now, a.planner.Interval(now, sig.Name, at, w.readings, verdicts))
	for i, t := range a.roster.order {
		r, v := &w.readings[i], &verdicts[i]
		variant := cmp.Or(w.counted[i].Variant, variant)
		a.learn(t, sig.Name, variant, at, r, v)
		view := api.SignalView{Signal: sig.Name, Cost: plan.Value(r.Cost), Limit: plan.Value(math.NaN()), Outlier: v.Outlier,
			Coverage: w.counted[i].Coverage, Spec: r.Spec}
		if v.Judged {
			view.Limit = plan.Value(v.Limit)
		}
		if v.Outlier {
			a.stats.outliers[sig.Name]++
		}
		t.views = append(t.views, view)
		a.record(t, &w.counted[i].Reading, sig.Name, variant, at, r)
	}
	if n := len(a.roster.order); n < len(w.readings) {
		a.recordOutside(sig, variant, at, &w.readings[n])
	}
}

func (a *Agent) specKey(t *task, sig sample.SignalName, variant string) spec.Key {
	return spec.Key{Job: t.Job, Platform: a.Platform, Signal: sig, Variant: variant}
}

// learn lets a sample teach its job's spec, unless it may belong to an
// incident: an outlier is held back until none has come of it, and while the
// task is a victim nothing is learnt, unless it changed itself for good.
func (a *Agent) learn(t *task, sig sample.SignalName, variant string, at sample.Millis, r *detect.Reading, v *detect.Verdict) {
	if !v.Sane {
		return
	}
	k := a.specKey(t, sig, variant)
	switch {
	case a.config.Spec.Incidents:
		a.history.Add(k, t.Key, at, r.CPU, r.Cost, r.Self)
	case a.planner.Follows(sig, t.Key):
		a.history.Add(k, t.Key, at, r.CPU, r.Cost, r.Self)
	case v.Anomaly || a.planner.InIncident(sig, t.Key):
		a.history.Discard(k, t.Key)
	case v.Outlier:
		a.history.Hold(k, t.Key, at, r.CPU, r.Cost, r.Self)
	default:
		a.history.Release(k, t.Key, at.Add(-a.config.Detect.OutlierWindow))
		a.history.Add(k, t.Key, at, r.CPU, r.Cost, r.Self)
	}
}

// record writes the sample to the trace, keeps it for the server, and counts it.
func (a *Agent) record(t *task, c *counter.Reading, sig sample.SignalName, variant string, at sample.Millis, r *detect.Reading) {
	a.stats.samples[sig]++
	if a.Record == nil && a.Uplink == nil {
		return
	}
	s := sample.Sample{TS: at, Machine: a.machine, Job: t.Job, Task: t.Name, Platform: a.Platform,
		Signal: sig, Variant: variant, Class: t.Class, CPU: float32(r.CPU), Cost: float32(r.Cost),
		Coverage: float32(c.Coverage), Flags: r.Flags, Extras: c.Extras}
	if t.threads > 0 {
		s.Extras.Set(sample.Threads, float64(t.threads))
	}
	if t.pressure.said {
		s.Extras.Set(sample.CPUStall, t.pressure.share)
	}
	if a.Uplink != nil {
		a.upward.samples = append(a.upward.samples, s)
	}
	if a.Record != nil {
		a.degrade("recording samples", a.Record(&s))
	}
}
