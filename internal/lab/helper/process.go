package helper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Environment is the environment of one part at a helper; it implements lab.Environment.
// Threads are the thread IDs of the helper's host.
type Environment struct {
	client *Client
	id     int
}

// Make makes a part's environment.
func (c *Client) Make(ctx context.Context, p *study.Part) (*Environment, error) {
	a, err := c.call(ctx, frame{Op: "make", Part: p})
	if err != nil {
		return nil, err
	}
	return &Environment{c, a.Env}, nil
}

// Environment is the one of a helper that runs ServeEnvironment.
func (c *Client) Environment() *Environment { return &Environment{client: c} }

// ask is a call about the environment. It waits without a limit while the connection
// lasts.
func (e *Environment) ask(f frame) (frame, error) {
	f.Env = e.id
	return e.client.call(context.Background(), f)
}

// Start implements lab.Environment.
func (e *Environment) Start(ctx context.Context, j lab.Job) (lab.Process, error) {
	return e.Run(ctx, j)
}

// Run is Start, for a process that can begin at a given instant.
func (e *Environment) Run(ctx context.Context, j lab.Job) (*Process, error) {
	c := e.client
	argv := slices.Clone(j.Argv)
	for i := range argv {
		if slices.Contains(c.opt.Self, argv[i]) {
			argv[i] = self
		}
	}
	p := &Process{client: c, job: j, done: make(chan struct{})}
	c.mu.Lock()
	if c.why != nil {
		c.mu.Unlock()
		return nil, c.Reason()
	}
	c.next++
	p.id = c.next
	c.procs[p.id] = p
	c.mu.Unlock()
	_, err := c.call(ctx, frame{Op: "start", Env: e.id, Proc: p.id, Job: &job{j.Name, argv, j.Dir, j.Env, j.WaitsForStart}})
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.procs, p.id)
		return nil, err
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

// Answers is Client.Answers.
func (e *Environment) Answers(ctx context.Context, port int) error {
	return e.client.Answers(ctx, port)
}

// Close implements lab.Environment.
func (e *Environment) Close() error {
	_, err := e.ask(frame{Op: "close"})
	return err
}

// Process is a command at a helper; it implements lab.Process.
type Process struct {
	client *Client
	id     int
	job    lab.Job
	done   chan struct{}

	mu      sync.Mutex
	err     error
	over    bool
	stopped bool // told to end
}

// wrote passes on a line of the process's output; fd is 1 or 2.
func (p *Process) wrote(fd int, line string) {
	w := p.job.Stdout
	if fd == 2 {
		w = p.job.Stderr
	}
	if w != nil {
		_, _ = io.WriteString(w, line+"\n") // the reader handles its errors
	}
}

// ended records how the process ended. Only the first call counts.
func (p *Process) ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over, p.err = true, err
	close(p.done)
}

// Begin implements lab.Process.
func (p *Process) Begin() (time.Time, time.Duration, error) {
	b := p.begin(context.Background(), 0)
	return b.At, b.Within, b.Err
}

func (p *Process) begin(ctx context.Context, at int64) BeginResult {
	a, err := p.client.call(ctx, frame{Op: "begin", Proc: p.id, NS: at})
	if err != nil {
		return BeginResult{Err: fmt.Errorf("begin %s: %w", p.job.Name, err)}
	}
	_, unsure := p.client.Clock()
	return BeginResult{At: p.client.here(a.NS), Within: time.Duration(a.Within) + unsure, There: a.NS}
}

// Release is Begin without waiting for an answer: the process begins when the message
// arrives.
func (p *Process) Release() error { return p.client.wire.send(frame{Op: "begin", Proc: p.id}) }

// Done implements lab.Process.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err implements lab.Process. The error of a process that was stopped counts only if its
// host was lost.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lost interface{ LostHost() string }
	if p.stopped && !errors.As(p.err, &lost) {
		return nil
	}
	return p.err
}

// Clock implements lab.Process.
func (p *Process) Clock(ns int64) time.Time { return p.client.here(ns) }

// Stop implements lab.Process.
func (p *Process) Stop() error { return p.StopWithin(context.Background()) }

// StopWithin is Stop while the context lasts.
func (p *Process) StopWithin(ctx context.Context) error {
	p.mu.Lock()
	over := p.over
	p.stopped = p.stopped || !over
	p.mu.Unlock()
	if over {
		return nil
	}
	_, err := p.client.call(ctx, frame{Op: "stop", Proc: p.id})
	return err
}
