package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Agent is the loop and its parts. A part holds its own state and pointers to parts that
// are declared in files above its own; no part holds the Agent.
type Agent struct {
	base
	recorder  *recorder
	actor     *actor
	discovery *discovery
	sampler   *sampler
	operator  *operator
	view      *view
	requests  chan func()
	done      chan struct{}
	saved     time.Time
}

// LeftOver is the reason for undoing changes that an earlier agent left.
const LeftOver = "left by an earlier agent"

// New makes an agent and loads the state that an earlier one left in the state directory.
func New(p Parts) (*Agent, error) {
	params, err := p.Config.DetectParams()
	if err != nil {
		return nil, err
	}
	policy, err := p.Config.Policy()
	if err != nil {
		return nil, err
	}
	d, err := openDisk(p.Config)
	if err != nil {
		return nil, err
	}
	h, name := &health{problems: map[string]string{}, log: p.Log}, p.Config.MachineName()
	b := base{Parts: &p, health: h, clock: &clock{health: h}, stats: newStats(), tasks: newTaskSet()}
	rec := &recorder{base: b, disk: d}
	needed := p.Config.SignalsChosen() || !slices.ContainsFunc(p.Signals, func(s api.SignalStatus) bool { return s.OK })
	for _, s := range p.Signals {
		switch {
		case s.OK:
		case needed:
			h.degrade("signal "+string(s.Signal), errors.New(s.Reason))
		default:
			p.Log.Info("signal is not counted", "signal", s.Signal, "reason", s.Reason)
		}
	}
	history := spec.NewHistory(p.Config.SpecParams())
	h.degrade("specs", d.loadSpecs(history))
	ready := slices.ContainsFunc(history.Records(), func(r spec.Record) bool { return r.Published.State == spec.Ready })
	o, err := load[overrides](d, overridesFile)
	h.degrade("overrides", errors.Join(err, o.restore(name)))
	if p.Uplink != nil {
		o.decided(p.Uplink.Decisions(), p.Version)
	}
	configured := policy.Mode
	var from api.Origin
	if policy.Mode, from = o.mode(configured, sample.At(b.clock.now())); from.Decision != nil {
		p.Log.Warn("the enforcement mode is not the configured one", "mode", policy.Mode, "from", from.Text(), "configured", configured)
	}
	b.pipeline = pipeline.New(pipeline.Config{Machine: name, CPUs: len(p.Topology.CPUs), Detect: params, Policy: policy,
		History: history, External: rec.serverSpec, LearnIncidents: p.Config.Spec.Incidents, Charts: true})
	known, err := load[[]plan.Offender](d, offendersFile)
	h.degrade("offenders", err)
	b.pipeline.RestoreOffenders(known)
	rec.base = b

	pl := &placement{base: b, topology: p.Topology}
	sc := newScheduler(b)
	ac := &actor{base: b, pendingUndo: map[string]string{}, profiles: map[string][]pipeline.Profile{}, placement: pl, recorder: rec}
	for _, c := range p.Enforcer.Active() {
		ac.pendingUndo[c.ID] = LeftOver
	}
	dc := &discovery{base: b, overrides: &o, placement: pl, scheduler: sc, actor: ac}
	sm := &sampler{base: b, machineName: name, placement: pl, scheduler: sc, recorder: rec, actor: ac, discovery: dc}
	sm.blind = &blind{base: b, recorder: rec}
	sm.window.fastStart = ready
	sm.outsideSubject.Task = detect.Outside()
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	sd := &standing{base: b, overrides: &o, actor: ac, recorder: rec, configured: configured, followed: map[string]*outcome{}}
	return &Agent{base: b, recorder: rec, actor: ac, discovery: dc, sampler: sm,
		view:     &view{base: b, scheduler: sc, sampler: sm, standing: sd, process: process},
		operator: &operator{base: b, standing: sd},
		requests: make(chan func()), done: make(chan struct{})}, nil
}

// ErrStopped is the answer to a request to an agent that has stopped.
var ErrStopped = errors.New("the agent is stopping")

// ask runs f in the loop's goroutine.
func (a *Agent) ask(ctx context.Context, f func()) error {
	finished := make(chan struct{})
	select {
	case a.requests <- func() { f(); close(finished) }:
		<-finished
		return nil
	case <-a.done:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Mode is the enforcement mode and where it comes from, before Run.
func (a *Agent) Mode() (plan.Mode, api.Origin) {
	return a.operator.standing.overrides.mode(a.operator.standing.configured, sample.At(a.clock.now()))
}

// tick is one iteration of the loop, in the order that the package's comment gives.
func (a *Agent) tick(now time.Time) {
	begin := time.Now()
	ms := sample.At(now)
	w := &a.sampler.window
	a.recorder.receiveSpecs()
	a.discovery.updateTasks(now, w.half(now, a.Config), w.open)
	a.actor.checkCaps(ms)
	if a.operator.standing.isDue(ms) {
		a.health.degrade("decisions", a.operator.standing.reconcile(ms))
	}
	a.pipeline.Tick(ms)
	a.actor.carryOut(ms)
	a.sampler.blind.tick(now)
	if w.open && w.over(now, a.Config) {
		a.sampler.closeWindow(now)
		a.view.hold(now)
	}
	a.actor.analyse()
	a.actor.nameDistrusted()
	if !w.open && w.due(now, a.Config) {
		a.sampler.openWindow(now)
	}
	if now.Sub(a.saved) >= a.Config.Spec.Save {
		a.saved = now
		a.health.degrade("specs", a.recorder.disk.saveSpecs(a.pipeline.History()))
	}
	a.stats.ticks++
	a.stats.tickSeconds += time.Since(begin).Seconds()
}

// stop undoes all caps and saves the state.
func (a *Agent) stop(now time.Time) error {
	ms := sample.At(now)
	a.Log.Info("stopping", "caps", len(a.pipeline.Caps()))
	a.pipeline.Stop(ms)
	a.actor.carryOut(ms)
	_, restored := a.Enforcer.RestoreAll(ms, "the agent stops")
	errs := []error{restored, a.recorder.disk.saveSpecs(a.pipeline.History()), a.sampler.stop()}
	for _, t := range a.tasks.order {
		if !t.ended { // else it is closed already
			errs = append(errs, t.cgroup.Close())
		}
	}
	errs = append(errs, a.recorder.disk.close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
