package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Environment is the environment of one part on a host; it implements lab.Environment.
// Threads are the host's thread IDs.
type Environment struct {
	host *Host
	id   int
}

// Make makes a part's environment on the host.
func (h *Host) Make(ctx context.Context, p *study.Part) (*Environment, error) {
	a, err := h.call(ctx, frame{Op: "make", Part: p})
	if err != nil {
		return nil, err
	}
	return &Environment{h, a.Env}, nil
}

// ask is a call about the environment. It waits without a limit while the host is not
// lost.
func (e *Environment) ask(f frame) (frame, error) {
	f.Env = e.id
	return e.host.call(context.Background(), f)
}

// Start implements lab.Environment.
func (e *Environment) Start(ctx context.Context, j lab.Job) (lab.Process, error) {
	return e.Run(ctx, j)
}

// Run is Start, for a process that can begin at a given instant.
func (e *Environment) Run(ctx context.Context, j lab.Job) (*Process, error) {
	h := e.host
	argv := slices.Clone(j.Argv)
	for i := range argv {
		if slices.Contains(h.opt.Self, argv[i]) {
			argv[i] = self
		}
	}
	a, err := h.call(ctx, frame{Op: "start", Env: e.id, Job: &job{j.Name, argv, j.Dir, j.Env, j.WaitsForStart}})
	if err != nil {
		return nil, err
	}
	p := &Process{ReportedProcess: lab.NewReportedProcess(j), host: h, id: a.Proc, name: j.Name}
	h.mu.Lock()
	if h.procs == nil {
		h.mu.Unlock()
		return nil, h.reason()
	}
	h.procs[p.id] = p
	early := h.early[p.id]
	delete(h.early, p.id)
	h.mu.Unlock()
	for _, f := range early {
		p.said(f)
	}
	return p, nil
}

// Pin implements lab.Environment.
func (e *Environment) Pin(sets []sample.Set) error {
	_, err := e.ask(frame{Op: "pin", Sets: textsOf(sets)})
	return err
}

// Pinned implements lab.Environment.
func (e *Environment) Pinned() ([]sample.Set, error) {
	a, err := e.ask(frame{Op: "pinned"})
	if err != nil {
		return nil, err
	}
	return setsOf(a.Sets)
}

// Usage implements lab.Environment.
func (e *Environment) Usage() (lab.Usage, error) {
	a, err := e.ask(frame{Op: "usage"})
	if err != nil || a.Usage == nil {
		return lab.Usage{}, err
	}
	return *a.Usage, nil
}

// Threads implements lab.Environment.
func (e *Environment) Threads() ([]int, error) {
	a, err := e.ask(frame{Op: "threads"})
	return a.Threads, err
}

// Ready implements lab.Environment.
func (e *Environment) Ready() (bool, error) {
	a, err := e.ask(frame{Op: "ready"})
	return a.Yes, err
}

// Freeze implements lab.Environment.
func (e *Environment) Freeze(stop bool) error {
	_, err := e.ask(frame{Op: "freeze", Yes: stop})
	return err
}

// Close implements lab.Environment.
func (e *Environment) Close() error {
	_, err := e.ask(frame{Op: "close"})
	return err
}

// Process is a command on a host; it implements lab.Process.
type Process struct {
	*lab.ReportedProcess
	host *Host
	id   int
	name string
}

// said handles a frame of the process. The host's listener calls it, and Run once.
func (p *Process) said(f frame) {
	if f.Op == "exit" {
		p.Ended(f.Failed.on(p.host.Name))
		return
	}
	p.Wrote(f.FD, f.Text)
}

// Begin implements lab.Process.
func (p *Process) Begin() (time.Time, time.Duration, error) {
	b := p.begin(context.Background(), 0)
	return b.At, b.Within, b.Err
}

func (p *Process) begin(ctx context.Context, at int64) BeginResult {
	a, err := p.host.call(ctx, frame{Op: "begin", Proc: p.id, NS: at})
	if err != nil {
		return BeginResult{Err: fmt.Errorf("begin %s: %w", p.name, err)}
	}
	_, unsure := p.host.Clock()
	return BeginResult{At: p.host.here(a.NS), Within: time.Duration(a.Within) + unsure, There: a.NS}
}

// Err implements lab.Process: a *LostError where the host was lost.
func (p *Process) Err() error {
	stopped, err := p.Outcome()
	if lost := (*LostError)(nil); stopped && !errors.As(err, &lost) {
		return nil
	}
	return err
}

// Clock implements lab.Process.
func (p *Process) Clock(ns int64) time.Time { return p.host.here(ns) }

// Stop implements lab.Process.
func (p *Process) Stop() error {
	if !p.Stopping() {
		return nil
	}
	_, err := p.host.call(context.Background(), frame{Op: "stop", Proc: p.id})
	return err
}

// BeginResult is when a process began, by this machine's clock.
type BeginResult struct {
	At     time.Time
	Within time.Duration // the largest error of At
	There  int64         // by its host's CLOCK_MONOTONIC, ns
	Err    error         // why it did not begin
}

// lead is how far ahead the common instant is by default: the request must have arrived
// on all hosts by then.
const lead = 250 * time.Millisecond

// Begin releases processes on any hosts at one instant: ahead of now (0: a quarter of a
// second), by each host's own clock, compared just before. The error joins those of the
// processes that did not begin; the other processes are not stopped.
func Begin(ctx context.Context, procs []*Process, ahead time.Duration) ([]BeginResult, error) {
	hosts := map[*Host]bool{}
	for _, p := range procs {
		hosts[p.host] = true
	}
	var wg sync.WaitGroup
	for h := range hosts {
		wg.Go(func() { _ = h.measureClock(ctx) }) // a lost host fails in begin
	}
	wg.Wait()
	if ahead <= 0 {
		ahead = lead
	}
	at := time.Now().Add(ahead)
	all := make([]BeginResult, len(procs))
	for i, p := range procs {
		wg.Go(func() {
			all[i] = p.begin(ctx, p.host.there(at))
		})
	}
	wg.Wait()
	var errs []error
	for i := range all {
		errs = append(errs, all[i].Err)
	}
	return all, errors.Join(errs...)
}

// Skew is the time between the first and the last begin.
func Skew(all []BeginResult) time.Duration {
	var first, last time.Time
	for _, b := range all {
		if b.Err != nil {
			continue
		}
		if first.IsZero() || b.At.Before(first) {
			first = b.At
		}
		if b.At.After(last) {
			last = b.At
		}
	}
	return last.Sub(first)
}
