package agent

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// window is the open sampling window, or when the next one opens.
type window struct {
	open      bool
	halved    bool   // its middle is over, or no task needs a reading there
	number    uint64 // of windows opened
	fastStart bool   // start with windows that are closer together
	start     time.Time
	next      time.Time
	read      time.Time // when usage was read at the end of the newest one
	times     host.CPUTimes
	timesOK   bool
	busy      time.Duration   // of all CPUs in the window; below 0: not known
	outside   float64         // CPU-s/s used outside any task
	length    time.Duration   // of the newest
	stolen    float64         // share of the machine's CPU time in it that the hypervisor took
	caps      []plan.CapState // in force at the window's start, then at its end
	// Those that were started, the tasks' sources by their indices.
	sources        []int
	machineSources []counter.MachineSource
	counted        []counted       // by the source that was stopped last, ordered as roster.order
	others         counter.Reading // by that source, for everything outside all tasks
	served         served
	sample         sample.Sample // the one that is being made
}

// counted is what a source counted for a task, if it did.
type counted struct {
	counter.Reading
	ok bool
}

// over and due allow half a tick, so that small drifts of the ticks do not make every
// window a tick longer.
func (w *window) over(now time.Time, c *config.Agent) bool {
	return now.Sub(w.start)+c.Tick/2 >= c.Sampling.Duration
}

// half reports once per window whether its middle is over.
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

// nextDue is when the next of half, over and due is true.
func (w *window) nextDue(c *config.Agent) time.Time {
	if !w.open {
		return w.next
	}
	if !w.halved {
		return w.start.Add(c.Sampling.Duration / 2)
	}
	end := w.start.Add(c.Sampling.Duration)
	if off := end.Sub(w.next); off > 0 && off <= c.Tick/2 { // the next one opens where this one ends
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
	a.updateTopology()
	a.schedule()
	// An agent that is restarted while a task suffers has everything it needs to detect
	// that except outliers. It takes them half a period apart, so that an anomaly is
	// found again after 70 s and not after 130 s, with the default settings.
	if w.fastStart && w.number < uint64(a.config.Detect.Outliers) {
		soon := now.Add(max(a.config.Sampling.Period/2, a.config.Sampling.Duration+a.config.Tick))
		if soon.Before(w.next) {
			w.next = soon
		}
	}
	w.sources = w.sources[:0]
	for i, s := range a.Sources {
		if a.taxes[i].paused {
			continue
		}
		if a.counting(s.Info().Signal, s.Start()) {
			w.sources = append(w.sources, i)
		}
	}
	w.machineSources = w.machineSources[:0]
	for _, s := range a.MachineSources {
		if a.counting(s.Info().Signal, s.Start()) {
			w.machineSources = append(w.machineSources, s)
		}
	}
	a.beginQuotas()
	// Read together: starting sources takes long if CPU time is scarce, and usage in
	// that time belongs to no task in the window.
	w.times, w.timesOK = a.cpuTimes()
	w.start, w.open, w.halved = a.now(), true, true
	w.caps = a.pipeline.Caps()
	// Usage of an idle task between two readings counts for the second. That is usually
	// nothing, but the analysis of the previous window may have taken long.
	justRead := w.start.Sub(w.read) < a.config.Sampling.Duration/100
	for _, t := range a.roster.order {
		if t.busy() || !justRead {
			_ = t.readUsage() // the error is in t.notes
		}
		t.pressure.begin(t.cgroup)
		if t.placementRead.IsZero() {
			a.readPlacement(now, t)
		}
		w.halved = w.halved && !t.busy()
		t.usageStart, t.counted, t.capped = t.usageNow, true, a.underCap(t)
	}
}

// counting records whether a signal is counted, and returns that.
func (a *Agent) counting(sig sample.SignalName, err error) bool {
	a.degrade("counting "+string(sig), err)
	return err == nil
}

func (a *Agent) cpuTimes() (host.CPUTimes, bool) {
	times, err := a.Machine.CPUTimes()
	a.degrade("reading CPU times", err)
	return times, err == nil
}

// closeWindow ends the window and processes its results.
func (a *Agent) closeWindow(now time.Time) {
	w := &a.window
	w.open = false
	w.served.reset()
	a.roster.settle()
	for _, t := range a.roster.order {
		if !t.ended {
			_ = t.readUsage() // the error is in t.notes
		}
	}
	end := a.now()
	w.read = end
	w.length = end.Sub(w.start)
	wall := w.length.Seconds()
	w.stolen = a.stolen(wall)
	contiguous := w.due(now, a.config)
	for _, t := range a.roster.order {
		if !t.ended {
			t.pressure.end(t.cgroup, w.length, contiguous)
		}
	}
	a.lackQuotas()
	w.caps = a.pipeline.Caps()
	for _, t := range a.roster.order {
		a.measure(t, end, wall)
	}
	w.outside = a.outside(wall)
	a.overall = a.overall[:0]
	at := sample.At(end)
	for _, i := range w.sources {
		info := a.Sources[i].Info()
		sig, ok := sample.LookupSignal(info.Signal)
		if !ok {
			continue
		}
		began := time.Now()
		a.collect(i, sig.Name, contiguous)
		a.stats.sourceSeconds[sig.Name] += time.Since(began).Seconds()
		a.judge(sample.At(now), at, sig, info.Variant)
	}
	for _, s := range w.machineSources {
		info := s.Info()
		sig, ok := sample.LookupSignal(info.Signal)
		if !ok {
			continue
		}
		began := time.Now()
		a.counting(sig.Name, s.Stop())
		a.stats.sourceSeconds[sig.Name] += time.Since(began).Seconds()
		a.judgeMachine(sample.At(now), at, sig, info.Variant, s)
	}
	a.sendSamples(at)
	a.stats.intervals++
	a.roster.dropEnded(a.dropTask)
	a.jobs.sum(a.roster.order)
	a.snapshot.takeWindow(a)
}

// stolen is the share of the machine's CPU time in the window that the hypervisor took
// (proc(5): steal). The kernel's other machine-wide values of the window are read here
// as well.
func (a *Agent) stolen(wall float64) float64 {
	times, ok := a.cpuTimes()
	a.window.busy = -1
	if !ok || !a.window.timesOK {
		return 0
	}
	a.updateOverheads(a.window.times, times, wall)
	b, e := a.window.times.Total, times.Total
	a.window.busy = e.Busy() - b.Busy()
	steal := e.Steal - b.Steal
	total := steal + (e.Busy() - b.Busy()) + (e.Idle - b.Idle) + (e.IOWait - b.IOWait)
	if total <= 0 || steal <= 0 {
		return 0
	}
	return float64(steal) / float64(total)
}

// measure computes the values of a task in the window that do not depend on the signal.
func (a *Agent) measure(t *task, now time.Time, wall float64) {
	t.measured = true
	t.cpu = max(0, (t.usageNow.CPU-t.usageStart.CPU).Seconds()/wall)
	t.flags = a.throttled(t, wall)
	if a.window.stolen >= a.pipeline.Params().StolenShare {
		t.flags |= sample.Stolen
	}
	if t.places.Split {
		t.flags |= sample.Split
	}
	t.views, t.notes[noteReading] = t.views[:0], ""
	if t.cpu < idle {
		t.placementInterval = 0 // look soon once it is busy
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

// collect stops a source and gathers its readings, including those of ended tasks.
func (a *Agent) collect(i int, sig sample.SignalName, contiguous bool) {
	w, s := &a.window, a.Sources[i]
	n := len(a.roster.order)
	w.counted = slices.Grow(w.counted[:0], n)[:n]
	clear(w.counted)
	cpu := func(k sample.TaskKey) (time.Duration, bool) {
		t := a.tasks[k]
		if t == nil || !t.counted {
			return 0, false
		}
		return t.usageNow.CPU - t.usageStart.CPU, t.notes[noteUsage] == ""
	}
	// A source that is paused next must not stay on.
	err := s.Stop(counter.WindowEnd{CPU: cpu, Next: contiguous && !a.taxes[i].paused}, func(k sample.TaskKey, r counter.Reading) {
		if t := a.tasks[k]; t != nil {
			w.counted[t.index] = counted{r, true}
		}
	})
	a.counting(sig, err)
	a.totals[i] = s.Totals()
	w.others = a.totals[i].Others
	for i, t := range a.roster.order {
		if r, ok := t.final[sig]; ok {
			w.counted[i] = counted{r, true}
		}
	}
	a.explain(sig)
}

// explain records why tasks were not counted. A uprobe that was removed because it cost
// the machine too much is a degradation of the agent.
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

// judge passes one signal's interval to the pipeline and the trace.
func (a *Agent) judge(now, at sample.Millis, sig sample.Signal, variant string) {
	w := &a.window
	iv := a.pipeline.Begin(sig, at, w.length)
	w.served.grow(w.counted)
	for i, t := range a.roster.order {
		c := &w.counted[i]
		cost, flags := math.NaN(), t.flags
		var names []sample.Served
		var keys []detect.Served
		if c.ok && t.counted && t.judges(sig.Name) {
			cost, flags = c.Cost, flags|c.Flags
			names, keys = a.nameServed(t, sig.Domain, c.Served)
			if math.IsNaN(c.Cost) {
				a.stats.notCounted[sig.Name]++
			}
		}
		s := a.sampled(t, sig.Name, cmp.Or(c.Variant, variant), at, cost, &c.Reading)
		s.Flags, s.Served = flags, names
		a.record(s)
		m := t.measurement(s, cost)
		m.Served = keys
		if m.Reach = c.Reach; sig.Domain.OfCPUs() {
			m.Reach = t.reach.in(sig.Domain)
		}
		iv.Add(t.subject(a.Platform, s), m)
	}
	a.addOutside(iv, sig, variant)
	verdicts := iv.End(now)
	a.carryOut(now)
	for i, t := range a.roster.order {
		r, v := iv.Reading(i), &verdicts[i]
		view := api.SignalView{Signal: sig.Name, Cost: incident.Value(r.Cost), Limit: incident.Value(math.NaN()), Outlier: v.Outlier,
			Coverage: w.counted[i].Coverage}
		if r.Spec != nil {
			view.Spec = *r.Spec
		}
		if v.Judged {
			view.Limit = incident.Value(v.Limit)
		}
		if v.Outlier {
			a.stats.outliers[sig.Name]++
		}
		t.views = append(t.views, view)
	}
}

// sampled is the sample of a task; it is valid until the next call.
func (a *Agent) sampled(t *task, sig sample.SignalName, variant string, at sample.Millis, cost float64, c *counter.Reading) *sample.Sample {
	s := &a.window.sample
	*s = sample.Sample{TS: at, Machine: a.machine, Job: t.Job, Task: t.Name, Platform: a.Platform, Signal: sig, Variant: variant, Class: t.Class,
		CPU: float32(t.cpu), Cost: float32(cost), Coverage: float32(c.Coverage), Flags: t.flags, Extras: c.Extras}
	if t.threads > 0 {
		s.Extras.Set(sample.Threads, float64(t.threads))
	}
	if t.pressure.said {
		s.Extras.Set(sample.CPUStall, t.pressure.share)
	}
	if s.Flags&sample.Stolen != 0 {
		s.Extras.Set(sample.StolenShare, a.window.stolen)
	}
	return s
}

// measurement is the pipeline's input for a task: its sample, without the rounding.
func (t *task) measurement(s *sample.Sample, cost float64) pipeline.Measurement {
	m := pipeline.MeasurementOf(s)
	m.CPU, m.Cost, m.HeldBy = t.cpu, cost, t.throttledBy
	return m
}

// record writes the sample to the trace, keeps it for the server, and counts it.
func (a *Agent) record(s *sample.Sample) {
	a.stats.samples[s.Signal]++
	if a.Uplink != nil {
		a.upward.samples = append(a.upward.samples, *s)
	}
	a.traceSample(s)
}

// traceSample writes a sample to the trace only: usage that a replay of the trace needs,
// but the server, which has specs of tasks, does not.
func (a *Agent) traceSample(s *sample.Sample) {
	if a.Record != nil {
		a.degrade("recording samples", a.Record(s))
	}
}
