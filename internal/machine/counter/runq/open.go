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
	// ErrFull is Add's error if as many tasks as possible are followed already.
	ErrFull = errors.New("run queue: too many tasks")

	errFollowed = errors.New("run queue: task is already monitored")
)

// maxTasks is how many tasks may be followed at once. In the kernel's memory each takes
// 64 bytes for every possible CPU, or where that would be more than 16 MiB for all, 4
// bytes and 16 MiB for all. In addition there are 96 KiB for each CPU and some 100 bytes for
// each thread of a followed task, as long as it lives. Nothing grows later: what does not
// fit is refused with [ErrFull] or counted by [Program.Totals].
const maxTasks = 10_240

// Open returns a [*Program] or, if eBPF is refused, a [*Schedstat] that keeps the
// reason. If neither can count, the error joins two [counter.NotSupportedError].
func Open() (counter.Source, error) { return openFor(maxTasks) }

func openFor(tasks int) (counter.Source, error) {
	p, refused := openProgram(tasks, options{})
	if refused == nil {
		return p, nil
	}
	s, err := openSchedstat(procDir, refused)
	if err != nil {
		return nil, errors.Join(refused, err)
	}
	return s, nil
}

// signal is the Signal of both sources.
const signal = sample.RunQ
