package agent

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

func (sm *sampler) openWindow(now time.Time) {
	w := &sm.window
	if sm.placement.updateTopology() {
		for _, s := range sm.scheduler.sources {
			s.SetCPUs(sm.placement.topology.Online)
		}
	}
	if sm.scheduler.number == 0 { // the rate of switches is known since the machine was booted
		times, _ := sm.cpuTimes()
		t, cpus := &times.Total, sm.placement.topology.Online.Len()
		up := (t.Busy() + t.Idle + t.IOWait + t.Steal).Seconds() / float64(cpus)
		sm.scheduler.updateOverheads(host.CPUTimes{Switches: 1}, times, up, cpus)
	}
	sm.scheduler.schedule(sm.pipeline.Roles())
	sm.schedule(now)
	w.sources = w.sources[:0]
	for _, s := range sm.scheduler.all {
		if !s.tax.paused && sm.counting(s.info.Signal, s.start()) {
			w.sources = append(w.sources, s)
		}
	}
	sm.placement.beginQuotas()
	// Read together: starting sources takes long if CPU time is scarce, and usage in
	// that time belongs to no task in the window.
	w.times, w.timesOK = sm.cpuTimes()
	w.start, w.open, w.halved = sm.clock.now(), true, true
	w.timesRead = w.start
	w.caps = sm.pipeline.Caps()
	// Usage of an idle task between two readings counts for the second. That is usually
	// nothing, but the analysis of the previous window may have taken long.
	justRead := w.start.Sub(w.read) < sm.Config.Sampling.Duration/100
	sm.sweep(func() {
		for _, t := range sm.tasks.order {
			if t.busy() || !justRead {
				_ = t.readUsage() // the error is in t.notes
			}
			t.pressure.begin(t.cgroup)
		}
	})
	for _, t := range sm.tasks.order {
		if t.placementRead.IsZero() {
			_ = sm.placement.readPlacement(now, t)
		}
		w.halved = w.halved && !t.busy()
		t.usageStart, t.counted, t.capped = t.usageNow, true, underCap(t, w.caps)
	}
}

// closeWindow ends the window and processes its results.
func (sm *sampler) closeWindow(now time.Time) {
	w := &sm.window
	w.open = false
	w.served.reset()
	sm.tasks.settle()
	sm.actor.review(sample.At(now))
	contiguous := w.due(now, sm.Config)
	sm.sweep(func() {
		for _, t := range sm.tasks.order {
			if !t.ended {
				_ = t.readUsage() // the error is in t.notes
			}
		}
		w.read = sm.clock.now()
		w.length = w.read.Sub(w.start)
		for _, t := range sm.tasks.order {
			if !t.ended {
				t.pressure.end(t.cgroup, w.length, contiguous)
			}
		}
	})
	end, wall := w.read, w.length.Seconds()
	w.stolen = sm.stolen()
	sm.placement.lackQuotas()
	w.caps = sm.pipeline.Caps()
	for _, t := range sm.tasks.order {
		sm.measure(t, end, wall)
	}
	w.outside = sm.outside()
	sm.overall = sm.overall[:0]
	at := sample.At(end)
	for _, s := range w.sources {
		began := time.Now()
		if s.machine != nil {
			sm.counting(s.info.Signal, s.machine.Stop())
		} else {
			sm.collect(s, contiguous)
		}
		sm.stats.sourceSeconds[s.info.Signal] += time.Since(began).Seconds()
		if s.machine != nil {
			sm.judgeMachine(sample.At(now), at, s)
		} else {
			sm.judge(sample.At(now), at, s)
		}
	}
	sm.recorder.sendSamples(at, sm.tasks.order)
	if sm.stats.intervals++; sm.stats.intervals == 1 {
		sm.discovery.introduce()
	}
	sm.blind.windowed()
	sm.tasks.dropEnded(sm.discovery.dropTask)
}

// measure computes the values of a task in the window that do not depend on the signal.
func (sm *sampler) measure(t *task, now time.Time, wall float64) {
	t.measured = true
	t.cpu = max(0, (t.usageNow.CPU-t.usageStart.CPU).Seconds()/wall)
	t.flags = sm.placement.throttled(t, sm.window.caps, sm.pipeline.Params().ThrottledShare, wall)
	if sm.window.stolen >= sm.pipeline.Params().StolenShare {
		t.flags |= sample.Stolen
	}
	if t.places.Split {
		t.flags |= sample.Split
	}
	t.judged, t.notes[noteReading] = t.judged[:0], ""
	if t.cpu < idle {
		t.placementInterval = 0 // look soon once it is busy
	}
	if !t.ended && t.dueLook(now) {
		sm.placement.lookAgain(now, t)
	}
	t.threads = 0
	if !t.ended && t.cpu >= idle && (sm.Record != nil || sm.Uplink != nil) {
		if n, err := t.cgroup.Threads(); err == nil {
			t.threads = n
		}
	}
}

// collect stops a source and gathers its readings, including those of ended tasks.
func (sm *sampler) collect(s *sourceState, contiguous bool) {
	w, sig := &sm.window, s.info.Signal
	n := len(sm.tasks.order)
	w.counted = slices.Grow(w.counted[:0], n)[:n]
	clear(w.counted)
	cpu := func(k sample.TaskKey) (time.Duration, bool) {
		t := sm.tasks.byKey[k]
		if t == nil || !t.counted {
			return 0, false
		}
		return t.usageNow.CPU - t.usageStart.CPU, t.notes[noteUsage] == ""
	}
	// A source that is paused next must not stay on.
	err := s.Stop(counter.WindowEnd{CPU: cpu, Next: contiguous && !s.tax.paused}, func(k sample.TaskKey, r counter.Reading) {
		if t := sm.tasks.byKey[k]; t != nil {
			w.counted[t.index] = counted{r, true}
		}
	})
	sm.counting(sig, err)
	s.totals = s.Totals()
	sm.health.degrade("cgroups of "+string(s.info.Signal), sm.crowded(s.totals.Crowded))
	w.others = s.totals.Others
	for i, t := range sm.tasks.order {
		if r, ok := t.final[sig]; ok {
			w.counted[i] = counted{r, true}
		}
	}
	sm.explain(sig)
}

// crowded names tasks with more cgroups than a source has room for.
func (sm *sampler) crowded(keys []sample.TaskKey) error {
	var names []string
	for _, k := range keys {
		if t := sm.tasks.byKey[k]; t != nil {
			names = append(names, string(t.Name))
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("%d tasks have more cgroups than are read or than their share of the kernel's maps, so that not all they do is counted; the first is %q", len(names), names[0])
}

// maxNamedHangs bounds how many quarantined tasks the list of problems names.
const maxNamedHangs = 8

// explain records why tasks were not counted. A uprobe that was removed because it cost
// the machine too much is a degradation of the agent, and so are a task that let a reader hang,
// and events that had counters for no task.
func (sm *sampler) explain(sig sample.SignalName) {
	w := &sm.window
	var refused, hangs []error
	var none error
	some := false // a task had counters
	for i, t := range sm.tasks.order {
		c := &w.counted[i]
		err := c.Err
		if err == nil {
			some = some || c.ok && !math.IsNaN(c.Cost)
			continue
		}
		if errors.Is(err, counter.ErrNoCounters) {
			none = err
		}
		t.notes[noteReading] = string(sig) + ": " + err.Error()
		if rate := (*counter.RateError)(nil); errors.As(err, &rate) && !slices.Contains(refused, err) {
			refused = append(refused, err)
		}
		if hang := (*counter.QuarantineError)(nil); errors.As(err, &hang) && len(hangs) < maxNamedHangs {
			hangs = append(hangs, fmt.Errorf("%s: %w", t.Name, err))
		}
	}
	if !some { // one that runs for a moment may miss its turn
		hangs = append(hangs, none)
	}
	sm.health.degrade("reading tasks for "+string(sig), errors.Join(hangs...))
	sm.health.degrade("uprobes for "+string(sig), errors.Join(refused...))
}

// stop closes an open window without a result.
func (sm *sampler) stop() error {
	if !sm.window.open {
		return nil
	}
	var errs []error
	for _, s := range sm.window.sources {
		if s.machine != nil {
			errs = append(errs, s.machine.Stop())
			continue
		}
		errs = append(errs, s.Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return 0, false }}, func(sample.TaskKey, counter.Reading) {}))
	}
	return errors.Join(errs...)
}
