package lab

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// The engine uses the interfaces below. Structs of packages env, load and observe
// implement them.

// Environment is the virtual environment of one part.
type Environment interface {
	// Start runs a command in it, stopped at the barrier before its first instruction
	// of work.
	Start(ctx context.Context, j Job) (Process, error)
	// Pin places its virtual CPUs, one set each, or all of it with one set. Pinned
	// reads back from the kernel where they may run.
	Pin(sets []sample.Set) error
	Pinned() ([]sample.Set, error)
	// Usage is the total CPU time that it has used.
	Usage() (Usage, error)
	// Threads are the host's thread ids whose placement is audited: the
	// virtual CPUs of a guest, the threads of what runs in a container.
	Threads() ([]int, error)
	// Ready reports whether a thread in it wants to run, with or without a CPU. A
	// frozen, stopped or sleeping thread does not.
	Ready() (bool, error)
	// Freeze stops everything in it, or lets it run again.
	Freeze(stop bool) error
	// Close ends what runs in it and removes it. A second call does nothing.
	Close() error
}

// Job is the command of a part.
type Job struct {
	Name   string // of the part
	Argv   []string
	Dir    string
	Env    []string
	Stdout io.Writer // gets whole lines; iterations are read from them
	Stderr io.Writer
	// WaitsForStart says that the program itself waits for a line on its standard input before
	// it works, and ends when that is closed, as quell's own workloads do. Any other
	// program is executed only after the barrier.
	WaitsForStart bool
}

// Process is a command in an environment.
type Process interface {
	// Begin releases it from the barrier. at is the time of the actual start on the
	// host's monotonic clock, within is the uncertainty of that time.
	Begin() (at time.Time, within time.Duration, err error)
	// Done is closed when it has ended; Err then says how.
	Done() <-chan struct{}
	Err() error
	// Stop ends it and waits.
	Stop() error
	// Clock maps times that the workload reports (its CLOCK_MONOTONIC, ns) to
	// the host's.
	Clock(ns int64) time.Time
}

// Traffic is what an environment has sent and received on its network, in bytes, and the
// packets of both directions.
type Traffic struct{ Sent, Received, Packets uint64 }

// Usage is CPU time since an environment was made.
type Usage struct {
	User, System, Throttled time.Duration
}

// Total is user and system time.
func (u Usage) Total() time.Duration { return u.User + u.System }

// Maker makes the environment of a part. Where the machine lacks something the error is
// a typed one like *host.Capability, and the run is skipped.
type Maker interface {
	Make(ctx context.Context, part *study.Part) (Environment, error)
	// Sweep removes what is left of an earlier lab that was killed.
	Sweep() error
}

// Linker is a Maker that puts environments themselves on a network: programs in guests and
// containers cannot enter a namespace of this machine.
type Linker interface {
	MakeOn(ctx context.Context, part *study.Part, l Link) (Environment, error)
}

// Link is a part's place on its study's network.
type Link interface {
	// Path is a file by which a process of this machine enters the part's namespace.
	Path() string
	// Tap returns a new tap device for a guest's network card. It ends with the last copy
	// of the file.
	Tap() (*os.File, error)
	// Adopt moves a network interface of this machine, the other end of a guest's network
	// card, to the part's place.
	Adopt(name string) error
}

// Observer watches a run from its common start on.
type Observer interface {
	// Second returns the sample of the last second; without values if there is none yet, which
	// only happens for a Watchable.
	Second(now time.Time) (result.Sample, []result.Evidence)
	// Window is called at the beginning and at the end of the steady window.
	Window(open bool) error
	// Close ends the observation and puts the counts into the parts.
	Close(parts []result.Part) ([]result.Evidence, error)
	// Energy returns the joules of a part of the run and the source that measured them; ""
	// if there is none, or if it does not cover the whole window. It is called after Close.
	Energy(w result.Window) (joules float64, source string)
}

// Watchable is a machine of its own where a run can be observed, in addition to this one:
// another host, or the inside of a guest.
type Watchable interface {
	Observe(ctx context.Context, o Observed) (Observer, error)
}

// Progress receives the progress of a study.
type Progress interface {
	Plan(runs int, takes time.Duration)
	Run(i int, p *study.Planned, try int)
	Phase(name string, part, whole time.Duration)
	Done(r *result.Run)
}
