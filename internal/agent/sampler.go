package agent

import (
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// sampler measures one window after the other.
type sampler struct {
	base
	window  window
	overall []machineCost // what machine-wide signals measured in the newest window
	// outsideSubject is the suspect for all CPU usage outside any task.
	outsideSubject pipeline.Subject
	machineName    string
	placement      *placement
	scheduler      *scheduler
	recorder       *recorder
	actor          *actor
	discovery      *discovery
	blind          *blind
}

// window is the open sampling window, or when the next one opens.
type window struct {
	open      bool
	halved    bool // its middle is over, or no task needs a reading there
	fastStart bool // start with windows that are closer together
	start     time.Time
	next      time.Time
	period    time.Time // if windows open at random moments: the beginning of that of the next one
	opened    time.Time // and that of the newest
	read      time.Time // when usage was read at the end of the newest one
	times     host.CPUTimes
	timesOK   bool
	timesRead time.Time       // when times was read
	busy      float64         // CPU-s/s of all CPUs in the window; below 0: not known
	outside   float64         // CPU-s/s used outside any task
	length    time.Duration   // of the newest
	stolen    float64         // share of the machine's CPU time in it that the hypervisor took
	caps      []plan.CapState // in force at the window's start, then at its end
	sources   []*sourceState  // that were started
	counted   []counted       // by the source that was stopped last, ordered as taskSet.order
	others    counter.Reading // by that source, for everything outside all tasks
	served    served
	sample    sample.Sample // the one that is being made
}

// machineCost is the newest cost of a machine-wide signal.
type machineCost struct {
	signal sample.SignalName
	name   string
	cost   incident.Value
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

// schedule sets when the next window opens. If windows open at random moments, each period has
// one, whose beginning is any moment of it with the same probability, and independent of
// earlier windows.
func (sm *sampler) schedule(now time.Time) {
	w, c := &sm.window, sm.Config
	period, least := c.Sampling.Period, c.Sampling.Duration+c.Tick
	// An agent that is restarted while a task suffers has everything it needs to detect
	// that except outliers. It takes them half a period apart, so that an anomaly is
	// found again after 70 s and not after 130 s, with the default settings.
	fast := w.fastStart && sm.scheduler.number < uint64(c.Detect.Outliers)
	soon := now.Add(max(period/2, least))
	if !sm.random() {
		if w.next.IsZero() {
			w.next = now
		}
		for !w.next.After(now.Add(c.Tick / 2)) {
			w.next = w.next.Add(period)
		}
		if fast && soon.Before(w.next) {
			w.next = soon
		}
		return
	}
	if w.period.IsZero() {
		w.period = now
	}
	w.opened = w.period
	if fast {
		w.next = soon
		return
	}
	w.period = periodAfter(w.period, now, period)
	w.next = w.period.Add(time.Duration(sm.Random() * float64(period)))
	if next := now.Add(least); w.next.Before(next) {
		w.next = next
	}
}

// counting records whether a signal is counted, and returns that.
func (sm *sampler) counting(sig sample.SignalName, err error) bool {
	sm.health.degrade("counting "+string(sig), err)
	return err == nil
}

func (sm *sampler) cpuTimes() (host.CPUTimes, bool) {
	times, err := sm.Machine.CPUTimes()
	sm.health.degrade("reading CPU times", err)
	return times, err == nil
}

// stolen is the share of the machine's CPU time in the window that the hypervisor took
// (proc(5): steal). The kernel's other machine-wide values of the window are read here
// as well.
func (sm *sampler) stolen() float64 {
	times, ok := sm.cpuTimes()
	sm.window.busy = -1
	if !ok || !sm.window.timesOK {
		return 0
	}
	// Its own span: on a machine without free CPU time the tasks' readings end far earlier.
	span := sm.clock.now().Sub(sm.window.timesRead).Seconds()
	sm.scheduler.updateOverheads(sm.window.times, times, span, sm.placement.topology.Online.Len())
	b, e := sm.window.times.Total, times.Total
	if span > 0 {
		sm.window.busy = (e.Busy() - b.Busy()).Seconds() / span
	}
	steal := e.Steal - b.Steal
	total := steal + (e.Busy() - b.Busy()) + (e.Idle - b.Idle) + (e.IOWait - b.IOWait)
	if total <= 0 || steal <= 0 {
		return 0
	}
	return float64(steal) / float64(total)
}

// sampled is the sample of a task; it is valid until the next call.
func (sm *sampler) sampled(t *task, sig sample.SignalName, variant string, at sample.Millis, cost float64, c *counter.Reading) *sample.Sample {
	s := &sm.window.sample
	*s = sample.Sample{TS: at, Machine: sm.machineName, Job: t.Job, Task: t.Name, Platform: sm.Platform, Signal: sig, Variant: variant, Class: t.Class,
		CPU: float32(t.cpu), Cost: float32(cost), Coverage: float32(c.Coverage), Flags: t.flags, Extras: c.Extras}
	if t.threads > 0 {
		s.Extras.Set(sample.Threads, float64(t.threads))
	}
	if t.pressure.said {
		s.Extras.Set(sample.CPUStall, t.pressure.share)
	}
	if s.Flags&sample.Stolen != 0 {
		s.Extras.Set(sample.StolenShare, sm.window.stolen)
	}
	return s
}
