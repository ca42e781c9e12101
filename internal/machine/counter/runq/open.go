package runq

import (
	"errors"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// The variants: what is counted, part of a spec's key.
const (
	VariantBPF       = "bpf"
	VariantSchedstat = "schedstat"
)

var (
	// ErrFull is Add's error if Options.Tasks are followed already.
	ErrFull = errors.New("run queue: too many tasks")

	errFollowed = errors.New("run queue: task is already monitored")
	errOpen     = errors.New("start window: one is open already")
	errNotOpen  = errors.New("stop window: none is open")
)

// Options bound what the eBPF programs keep in the kernel's memory, in addition to some
// 100 bytes for each thread of a followed task, as long as it lives. The zero value
// takes the defaults. Nothing grows later: what does not fit is refused with [ErrFull]
// or counted by [Program.Totals].
type Options struct {
	// Tasks is how many tasks may be followed at once, 64 bytes each for every possible
	// CPU, which takes 96 KiB in addition. 0: 1024; at most 65534.
	Tasks int
	// Cgroups is how many cgroups they may have, nested ones included, about
	// 80 bytes each. 0: 8 × Tasks.
	Cgroups int
	// NoBPF counts with schedstat even if eBPF works.
	NoBPF bool
	// Proc is where procfs is mounted. "": /proc.
	Proc string
}

func (o Options) withDefaults() Options {
	set := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&o.Tasks, 1024)
	set(&o.Cgroups, 8*o.Tasks)
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	return o
}

// Open returns a [*Program] or, if eBPF is refused, a [*Schedstat] that keeps the
// reason. If neither can count, the error joins two [counter.NotSupportedError].
func Open(opts Options) (counter.Source, error) {
	opts = opts.withDefaults()
	refused := error(errNoBPF)
	if !opts.NoBPF {
		p, err := openProgram(opts)
		if err == nil {
			return p, nil
		}
		refused = err
	}
	s, err := openSchedstat(opts, refused)
	if err != nil {
		return nil, errors.Join(refused, err)
	}
	return s, nil
}

var errNoBPF = errors.New("eBPF is switched off")

// signal is the Signal of both sources.
const signal = sample.RunQ
