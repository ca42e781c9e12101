package observe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
)

// pieceOf is the length of a piece of work: two readings of the observer.
const pieceOf = 2 * time.Second

// Cost measures what these options cost a job in an environment. The job prints its
// iterations (role.IterationLine) and is pinned to the CPUs. The pieces are two seconds
// long, in groups of four, see MeasureCost. Every observed piece includes opening and
// closing the observer, which a run does once.
func (o Options) Cost(ctx context.Context, e lab.Environment, job lab.Job, cpus sample.Set, groups int) (c Cost, err error) {
	b := &costProbe{env: e}
	job.Stdout = &role.LineWriter{Line: b.line}
	p, err := e.Start(ctx, job)
	if err != nil {
		return c, fmt.Errorf("measure the cost of observation: %w", err)
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if _, _, err := p.Begin(); err != nil {
		return c, fmt.Errorf("measure the cost of observation: %w", err)
	}
	// No other disturbance is a reason to end a piece.
	o.Run = study.Run{MaxForeignCPU: 1, MaxSteal: 1}
	return MeasureCost(ctx, groups, func() (time.Duration, error) { return b.piece(ctx) },
		func() (func() error, error) { return o.observeEverySecond(e, cpus) })
}

// costProbe counts the units of work that a job has done.
type costProbe struct {
	env   lab.Environment
	mu    sync.Mutex
	units float64
}

// line reads a line of the job's output.
func (b *costProbe) line(text string) {
	if _, _, n, ok := role.ParseIteration(text); ok {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.units += n
	}
}

func (b *costProbe) done() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.units
}

// perUnits is the number of units that a piece's CPU time refers to. It is in the range
// of what one piece does, so that the result is a time of ordinary size.
const perUnits = 1e9

// piece lets the job work for pieceOf and returns the CPU time of perUnits units. The job
// is stopped at both ends: its CPU time is then exact, and its units are exact to one
// iteration.
func (b *costProbe) piece(ctx context.Context) (time.Duration, error) {
	used0, done0, err := b.stopped(ctx)
	if err != nil {
		return 0, err
	}
	if err := b.env.Freeze(false); err != nil {
		return 0, err
	}
	if err := wait(ctx, pieceOf); err != nil {
		return 0, err
	}
	used1, done1, err := b.stopped(ctx)
	if err := errors.Join(err, b.env.Freeze(false)); err != nil {
		return 0, err
	}
	if done1 <= done0 {
		return 0, fmt.Errorf("no iteration in %s", pieceOf)
	}
	return time.Duration((used1 - used0).Seconds() * perUnits / (done1 - done0) * 1e9), nil
}

// stopped stops the job and reads its CPU time and its units.
func (b *costProbe) stopped(ctx context.Context) (used time.Duration, done float64, err error) {
	if err := b.env.Freeze(true); err != nil {
		return 0, 0, err
	}
	// The job's last lines are still in transit.
	if err := wait(ctx, 20*time.Millisecond); err != nil {
		return 0, 0, err
	}
	u, err := b.env.Usage()
	return u.Total(), b.done(), err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// observeEverySecond observes one part as the engine does: once a second.
func (o Options) observeEverySecond(e lab.Environment, cpus sample.Set) (func() error, error) {
	obs, err := o.open(lab.Observed{Cell: &study.Cell{Parts: []study.Part{{Role: "fg"}}}, Names: []string{"fg"}, Envs: []lab.Environment{e},
		Start: time.Now(), Sets: [][]sample.Set{{cpus}}})
	if err != nil {
		return nil, err
	}
	if err := obs.Window(true); err != nil {
		return nil, errors.Join(err, obs.release())
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case now := <-t.C:
				obs.Second(now)
			}
		}
	}()
	return func() error {
		close(stop)
		<-done
		err := obs.Window(false)
		_, closing := obs.Close(nil)
		return errors.Join(err, closing)
	}, nil
}
