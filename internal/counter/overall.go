package counter

import "github.com/quell-dev/quell/internal/sample"

// Overall is a Source that measures the machine and no task: Add takes every
// task and counts none. What it measured is judged like a task's, as that of
// stand-ins with names of their own.
type Overall interface {
	Source
	// Overall yields what the last window said, after Stop: of the stand-in of
	// that name, and of the CPUs it was measured on, nil for all.
	Overall(yield func(name string, cpus sample.Set, r Reading))
}
