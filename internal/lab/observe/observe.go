package observe

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Options say what is observed in a run.
type Options struct {
	Host    *host.Host
	Observe study.Observe
	Run     study.Run

	sources map[string]func() (counter.Source, error) // set by a test; nil: sourced
}

// Observer watches one run. It implements lab.Observer and is for one
// goroutine.
type Observer struct {
	opt    Options
	of     lab.Observed
	parts  []*part
	cpus   sample.Set // of all parts
	length time.Duration
	// confined is true if this process can only be on the parts' CPUs: its own CPU time is then
	// known to be on them, and is not foreign.
	confined bool

	last, opened, closed machine // readings: at the last second, and at the window's ends
	inWindow             bool
	blamed               map[result.Reason]bool
	found                []result.Evidence // between two calls

	counting []*signalCounter // for the signals that sources count

	clock  clock
	kernel *kernelLog // nil where it cannot be read
	energy *energy    // nil without a source
	caches *caches    // nil where CPUs do not move
	domain *domains   // nil where the study does not ask for them
	before processes
}

// Open begins to watch a run. It is the value for lab.Options.Observe.
func (o Options) Open(of lab.Observed) (lab.Observer, error) {
	obs, err := o.open(of)
	if err != nil {
		return nil, err
	}
	return obs, nil
}

func (o Options) open(of lab.Observed) (*Observer, error) {
	obs := &Observer{opt: o, of: of, blamed: map[result.Reason]bool{}, length: steady(of.Cell)}
	top, err := o.Host.Topology()
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	for i, name := range of.Names {
		var cpus sample.Set
		for _, set := range of.Sets[i] {
			cpus = cpus.Union(set)
		}
		if cpus.Len() == 0 {
			cpus = top.Online
		}
		obs.cpus = obs.cpus.Union(cpus)
		obs.parts = append(obs.parts, newPart(name, of.Envs[i], cpus, &obs.opt))
	}
	if len(obs.parts) == 0 {
		obs.cpus = top.Online
	}
	own, err := host.Affinity(0)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	obs.confined = obs.cpus.Union(own).Len() == obs.cpus.Len()
	if obs.wants("domains") {
		obs.domain = &domains{host: o.Host, envs: of.Envs}
	}
	obs.openCountings()
	if obs.energy, err = openEnergy(o.Host, o.Observe); err != nil {
		return nil, errors.Join(fmt.Errorf("observe: %w", err), obs.release())
	}
	obs.kernel = openKernelLog(o.Host)
	obs.caches = openCaches(o.Host, top, obs.parts)
	obs.caches.measure()
	if obs.clock, err = readClock(); err != nil {
		return nil, errors.Join(fmt.Errorf("observe: %w", err), obs.release())
	}
	if obs.last, err = obs.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("observe: %w", err), obs.release())
	}
	return obs, nil
}

// steady is the minimum length of a cell's steady window; 0 where the iterations
// determine it.
func steady(c *study.Cell) time.Duration {
	length := c.For
	if n := len(c.Steps); n > 0 {
		length = max(length, c.Steps[n-1].To-c.Warmup)
	}
	for _, p := range c.Parts {
		if p.Measure {
			length = max(length, p.Workload.Time)
		}
	}
	return length
}

func (o *Observer) wants(set string) bool { return slices.Contains(o.opt.Observe.Sets, set) }

// Second implements lab.Observer.
func (o *Observer) Second(now time.Time) (result.Sample, []result.Evidence) {
	s := result.Sample{At: now.Sub(o.of.Start), Values: map[string]float64{}}
	cur, err := o.read()
	if err != nil {
		// A run is not valid if a part of it could not be watched.
		return s, []result.Evidence{{Reason: result.WorkloadFailed, At: s.At, Text: "observe: " + err.Error()}}
	}
	o.values(s.Values, o.last, cur)
	o.last = cur
	o.watch(s)
	if o.inWindow {
		o.tally(s.At)
		o.checkEarly(cur, s.At)
	}
	evidence := o.found
	o.found = nil
	return s, evidence
}

// tally reads the parts' events, for those of each step.
func (o *Observer) tally(at time.Duration) {
	if len(o.of.Cell.Steps) == 0 {
		return
	}
	for _, p := range o.parts {
		p.tally(at)
	}
}

// watch checks what is not a counter of the machine.
func (o *Observer) watch(s result.Sample) {
	if c, err := readClock(); err == nil {
		step := c.since(o.clock)
		s.Values["clock.offset"] = step.offset.Seconds()
		o.clock = c
		if o.inWindow {
			o.addEvidence(step.judge(), s.At)
		}
	}
	lines := o.kernel.read()
	if o.kernel != nil {
		s.Values["kmsg.lines"] = float64(len(lines))
	}
	if o.inWindow {
		o.addEvidence(judgeKernel(lines), s.At)
	}
	o.caches.values(s.Values)
}

// Window implements lab.Observer.
func (o *Observer) Window(open bool) error {
	errs := []error{o.domain.window(open)}
	// The time to attach and detach programs is outside the window.
	if open {
		o.count(true)
	} else {
		defer o.count(false)
	}
	cur, err := o.read()
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("observe: %w", err))...)
	}
	for _, p := range o.parts {
		errs = append(errs, p.window(open))
	}
	o.tally(time.Since(o.of.Start))
	if open {
		o.kernel.read()
		o.opened, o.inWindow = cur, true
		o.before = listProcesses(o.opt.Host)
		// A clock step before the window does not matter.
		o.clock, err = readClock()
		return errors.Join(append(errs, err)...)
	}
	o.closed, o.inWindow = cur, false
	o.watchEnd(time.Since(o.of.Start))
	return errors.Join(errs...)
}

// watchEnd checks the last, partial second.
func (o *Observer) watchEnd(at time.Duration) {
	if c, err := readClock(); err == nil {
		o.addEvidence(c.since(o.clock).judge(), at)
	}
	o.addEvidence(judgeKernel(o.kernel.read()), at)
	o.checkFinal(o.opened, o.closed, at)
}

// addEvidence records evidence, once for each reason and role. A machine without parts may do
// anything else.
func (o *Observer) addEvidence(e *result.Evidence, at time.Duration) {
	if e == nil || len(o.parts) == 0 || o.blamed[e.Reason+result.Reason("/"+e.Role)] {
		return
	}
	o.blamed[e.Reason+result.Reason("/"+e.Role)] = true
	e.At = at
	o.found = append(o.found, *e)
}

// Close implements lab.Observer.
func (o *Observer) Close(parts []result.Part) ([]result.Evidence, error) {
	for i, p := range o.parts {
		if i < len(parts) {
			parts[i].Events, parts[i].Missing = p.counts()
			parts[i].StepEvents = p.inSteps(o.of.Cell.Steps)
		}
	}
	o.domain.add(parts)
	o.caches.measure()
	if e := o.caches.judge(o.of.Cell.Place); !o.closed.at.IsZero() {
		o.addEvidence(e, o.closed.at.Sub(o.of.Start))
	}
	evidence := o.found
	o.found = nil
	return evidence, o.release()
}

// release releases all resources.
func (o *Observer) release() error {
	for _, p := range o.parts {
		p.close()
	}
	return errors.Join(o.kernel.close(), o.energy.close(), o.domain.close(), o.closeCountings())
}

// Energy implements lab.Observer.
func (o *Observer) Energy(w result.Window) (joules float64, source string) {
	return o.energy.between(o.of.Start.Add(w.From), o.of.Start.Add(w.To))
}
