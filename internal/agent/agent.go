package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Finder finds the cgroups that are tasks.
type Finder interface {
	// Find lists all of them. fresh is false if nothing can have changed since the last
	// call; then found is empty.
	Find(now time.Time) (found []Found, fresh bool, err error)
	Open(Found) (Cgroup, error)
	// Unwatched is why changes are found by walking periodically; nil if the kernel
	// reports them.
	Unwatched() error
	// Wait returns a function that blocks until Find may report a change, or until
	// waiting fails. The function is called in another goroutine. It is nil if changes
	// are not reported.
	Wait() func() error
}

// Found is a cgroup that a rule makes a task.
type Found struct {
	Hierarchy sample.Hierarchy
	Path      string
	Inode     uint64
	Rule      *config.Matcher
	Job       sample.JobName
	// Own: the agent runs in this cgroup; it is never capped.
	Own bool
}

// Cgroup is one task's cgroup; *host.Cgroup is one.
type Cgroup interface {
	Dir() string
	Members() ([]int, error)
	Below() ([]uint64, error)
	Usage() (host.Usage, error)
	// Stalled is how long at least one thread has waited for a resource ("cpu").
	Stalled(resource string) (time.Duration, error)
	Places() (host.Places, error)
	IOPlace() (string, error)
	AllowedCPUs() (sample.Set, error)
	Threads() (int, error)
	// KeepOpen sets whether the files that Usage reads stay open from one reading to the
	// next; Files is how many are open.
	KeepOpen(yes bool) error
	OpenFiles() int
	Close() error
}

// Enforcer makes changes and undoes them; *enforce.Enforcer is one.
type Enforcer interface {
	Apply(now sample.Millis, c enforce.Change) error
	Undo(now sample.Millis, id, why string) (enforce.Outcome, error)
	Active() []enforce.Change
	Due(now sample.Millis) []string
	Check() []string
	// Stuck returns the changes that could not be undone; Due tells when to retry.
	Stuck() []enforce.FailedUndo
	// Err is why the journal cannot be written, so that no cap can be set; nil if it can.
	Err() error
	RestoreAll(now sample.Millis, why string) ([]enforce.Outcome, error)
}

// Machine is what the agent needs of the machine as a whole; *host.Host is one.
type Machine interface {
	CPUTimes() (host.CPUTimes, error)
	CapWrites(cpuPath string, rate float64, period time.Duration) (dir string, inode uint64, w []host.Write, err error)
	// IOLimit and IOWrites apply to the path that Cgroup.IOPlace returns.
	IOLimit(ioPath string, dev host.Device) (host.IOLimit, error)
	IOWrites(ioPath string, dev host.Device, limit host.IOLimit) (dir string, inode uint64, w []host.Write, err error)
	// Online returns the CPUs that are online now. If they differ from those of the
	// known topology, Topology is read again.
	Online() (sample.Set, error)
	Topology() (host.Topology, error)
	// Throttled is how long a cgroup was throttled by its own quota; an error if it has
	// none.
	Throttled(cpuPath string) (time.Duration, error)
	// Weight is a cgroup's CPU weight relative to its siblings; an error if it has none.
	Weight(cpuPath string) (float64, error)
}

// Parts are the components of an agent. The caller closes the sources and Enforcer after Run.
type Parts struct {
	Config   *config.Agent
	Version  string
	Platform sample.Platform
	Topology host.Topology
	Machine  Machine
	Finder   Finder
	Sources  []counter.Source
	// MachineSources measure the machine; their signals are judged after those of Sources.
	MachineSources []counter.MachineSource
	// SharedDisks returns the disks that two tasks have both used; nil if that is not known.
	SharedDisks func(a, b sample.TaskKey) []host.Device
	Enforcer    Enforcer
	// NetWrites lists the writes that limit the cgroup (v2) in a directory to
	// bytesPerSecond; nil if that is not possible.
	NetWrites func(dir string, bytesPerSecond uint64) []host.Write
	// Signals holds the status of every signal that was requested.
	Signals []api.SignalStatus
	Log     *slog.Logger
	// Descriptors returns how many file descriptors the process has open and its limit;
	// nil if there is no limit.
	Descriptors func() (open, limit int, err error)
	// Record receives every sample; nil if samples are not recorded.
	Record func(*sample.Sample) error
	// Uplink is the connection to the server; nil for none.
	Uplink Uplink
}

// Agent is the loop and its state.
type Agent struct {
	Parts
	config      *config.Agent
	pipeline    *pipeline.Pipeline
	tasks       map[sample.TaskKey]*task
	byCgroup    map[cgroupID]*task
	roster      roster // the same tasks, sorted
	quotas      quotas
	groups      weightTree
	reaches     reaches
	jobs        jobs
	snapshot    snapshot
	window      window
	allocations []allocation     // by source, of the newest window
	eligible    [][]*task        // by source: tasks that it could count in that window
	taxes       []overhead       // by source
	totals      []counter.Totals // by source, as of the newest window
	machine     string
	disk        *stateDir
	stats       stats
	requests    chan func()
	done        chan struct{}
	clock       clock
	started     sample.Millis
	saved       time.Time
	upward      serverState
	// standIns are the stand-ins that machine-wide signals judge, by signal and name;
	// overall is what those signals measured in the newest window.
	standIns map[string]*task
	overall  []machineCost
	// outsideSubject is the suspect for all CPU usage outside any task.
	outsideSubject pipeline.Subject
	// degraded holds the current problems, by what they concern.
	degraded map[string]string
	// overrides are the operators' settings that are kept over restarts.
	overrides overrides
	// pendingUndo is why caps are to be undone that could not be undone yet, by id.
	pendingUndo map[string]string
	// monitorErrs are the tasks that could not be followed at the last Find, with the error.
	monitorErrs map[string]error
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
	a := &Agent{Parts: p, config: p.Config, disk: d,
		tasks: map[sample.TaskKey]*task{}, byCgroup: map[cgroupID]*task{}, standIns: map[string]*task{},
		requests: make(chan func()), done: make(chan struct{}),
		degraded: map[string]string{}, pendingUndo: map[string]string{},
		taxes: make([]overhead, len(p.Sources)), totals: make([]counter.Totals, len(p.Sources)), stats: newStats(), snapshot: newSnapshot(),
	}
	for _, c := range p.Enforcer.Active() {
		a.pendingUndo[c.ID] = LeftOver
	}
	for _, s := range p.Signals {
		if !s.OK {
			a.degrade("signal "+string(s.Signal), errors.New(s.Reason))
		}
	}
	history := spec.NewHistory(p.Config.SpecParams())
	a.degrade("specs", a.disk.loadSpecs(history))
	a.window.fastStart = slices.ContainsFunc(history.Records(), func(r spec.Record) bool { return r.Published.State == spec.Ready })
	a.degrade("overrides", a.disk.loadOverrides(&a.overrides))
	if m, err := plan.ParseMode(a.overrides.Mode); err == nil && m != policy.Mode {
		a.Log.Warn("enforcement mode set by an operator overrides the configuration", "mode", m, "configured", policy.Mode)
		policy.Mode = m
	}
	a.machine = p.Config.MachineName()
	a.pipeline = pipeline.New(pipeline.Config{Machine: a.machine, Detect: params, Policy: policy,
		History: history, External: a.serverSpec, LearnIncidents: p.Config.Spec.Incidents, Charts: true})
	a.outsideSubject.Task = detect.Outside()
	known, err := a.disk.loadOffenders()
	a.degrade("offenders", err)
	a.pipeline.RestoreOffenders(known)
	return a, nil
}

// degrade records a failure of what, or with a nil error its recovery. Only a change is
// logged.
func (a *Agent) degrade(what string, err error) {
	_, was := a.degraded[what]
	switch {
	case err == nil && was:
		delete(a.degraded, what)
		a.Log.Info("works again", "what", what)
	case err != nil && a.degraded[what] != err.Error():
		a.degraded[what] = err.Error()
		a.Log.Warn("degraded", "what", what, "reason", err)
	}
}

// Run is the loop. When ctx ends, it undoes every cap and saves what was learnt; the
// error tells which of these failed.
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.done)
	a.saved = a.now()
	a.started = sample.At(a.saved)
	a.degrade("incident log", a.closeLeftOver(a.started))
	a.loop(ctx)
	return a.stop(a.now())
}

// ErrStopped is the answer to a request to an agent that has stopped.
var ErrStopped = errors.New("the agent is stopping")

// ask runs f in the loop's goroutine.
func (a *Agent) ask(ctx context.Context, f func()) error {
	finished := make(chan struct{})
	select {
	case a.requests <- func() { f(); a.snapshot.take(a, a.now()); close(finished) }:
		<-finished
		return nil
	case <-a.done:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Agent) tick(now time.Time) {
	begin := time.Now()
	ms := sample.At(now)
	a.receiveSpecs()
	a.updateTasks(now)
	a.checkCaps(ms)
	a.pipeline.Tick(ms)
	a.carryOut(ms)
	if a.window.open && a.window.over(now, a.config) {
		a.closeWindow(now)
	}
	a.analyse()
	if !a.window.open && a.window.due(now, a.config) {
		a.openWindow(now)
	}
	if now.Sub(a.saved) >= a.config.Spec.Save {
		a.saved = now
		a.degrade("specs", a.disk.saveSpecs(a.pipeline.History()))
	}
	a.stats.ticks++
	a.stats.tickSeconds += time.Since(begin).Seconds()
	a.snapshot.take(a, now)
}

// analyse processes anomalies, as many as the analysis rate allows.
func (a *Agent) analyse() {
	for {
		now := sample.At(a.now())
		if !a.pipeline.Analyse(now) {
			return
		}
		a.carryOut(now)
	}
}

// stop undoes all caps and saves the state.
func (a *Agent) stop(now time.Time) error {
	ms := sample.At(now)
	a.Log.Info("stopping", "caps", len(a.pipeline.Caps()))
	a.pipeline.Stop(ms)
	a.carryOut(ms)
	_, restored := a.Enforcer.RestoreAll(ms, "the agent stops")
	errs := []error{restored, a.disk.saveSpecs(a.pipeline.History())}
	if a.window.open {
		for _, i := range a.window.sources {
			errs = append(errs, a.Sources[i].Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return 0, false }}, func(sample.TaskKey, counter.Reading) {}))
		}
		for _, s := range a.window.machineSources {
			errs = append(errs, s.Stop())
		}
	}
	for _, t := range a.roster.order {
		if !t.ended { // else it is closed already
			errs = append(errs, t.cgroup.Close())
		}
	}
	errs = append(errs, a.disk.close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
