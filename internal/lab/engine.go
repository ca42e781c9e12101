package lab

import (
	"context"
	"io"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/sample"
)

// The engine is fed through these; packages env, load and observe have structs
// that fit.

// Environment is one part's virtual environment while it is there.
type Environment interface {
	// Start runs a command in it, held at the barrier before its first
	// instruction of work.
	Start(ctx context.Context, j Job) (Process, error)
	// Pin places its virtual CPUs, one set each, or all of it with one set,
	// and Pinned reads back from the kernel where they may run.
	Pin(sets []sample.Set) error
	Pinned() ([]sample.Set, error)
	// Usage is the CPU time that it has used, all of it.
	Usage() (Usage, error)
	// Threads are the host's thread ids whose placement is audited: the
	// virtual CPUs of a guest, the threads of what runs in a container.
	Threads() ([]int, error)
	// Ready reports whether a thread in it wants to run, whether it has a CPU
	// or not. What is frozen, stopped or asleep does not.
	Ready() (bool, error)
	// Freeze stops and thaws everything in it.
	Freeze(stop bool) error
	// Close ends what runs in it and removes it. Closing again does nothing.
	Close() error
}

// Job is a command of a role.
type Job struct {
	Name   string // of the part
	Argv   []string
	Dir    string
	Env    []string
	Stdout io.Writer // whole lines; iterations are read from it
	Stderr io.Writer
	// Waits is that the program waits for a line on its standard input by
	// itself before it works, and ends when that is closed, as quell's own
	// workloads do. Any other is started anew at the barrier.
	Waits bool
}

// Process is a command in an environment.
type Process interface {
	// Begin lets it go from the barrier; the time is when it really went, on
	// the host's monotonic clock, and how far that may be wrong.
	Begin() (at time.Time, within time.Duration, err error)
	// Done is closed when it has ended, after which Err says how.
	Done() <-chan struct{}
	Err() error
	// Stop ends it and waits.
	Stop() error
	// Clock maps times that the workload reports (its CLOCK_MONOTONIC, ns) to
	// the host's.
	Clock(ns int64) time.Time
}

// Usage is CPU time since an environment was made.
type Usage struct {
	User, System, Throttled time.Duration
}

// Total is user and system time.
func (u Usage) Total() time.Duration { return u.User + u.System }

// Maker makes the environment of a part; the error is a *host.Capability-like
// typed one where the machine lacks something, and the run is skipped.
type Maker interface {
	Make(ctx context.Context, part *study.Part) (Environment, error)
	// Sweep removes what an earlier lab that was killed has left behind.
	Sweep() error
}

// Observer watches a run from its common start on. One that knows of energy
// also has Energy(w result.Window) (joules float64, source string), which is
// asked after Close.
type Observer interface {
	// Second returns what the last second was like.
	Second(now time.Time) (result.Sample, []result.Evidence)
	// Window is called at the beginning and at the end of the steady window.
	Window(open bool) error
	// Close ends it and puts what it counted into the parts.
	Close(parts []result.Part) ([]result.Evidence, error)
}

// Progress is told how a study goes on.
type Progress interface {
	Plan(runs int, takes time.Duration)
	Run(i int, p *study.Planned, try int)
	Phase(name string, part, whole time.Duration)
	Done(r *result.Run)
}
