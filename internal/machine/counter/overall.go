package counter

import "github.com/quell-dev/quell/internal/core/sample"

// MachineSource is a Source that measures the machine and no task: Add accepts every task and
// counts none. Its readings are judged like a task's, under the names of stand-ins.
type MachineSource interface {
	Source
	// MachineReadings yields the readings of the last window, after Stop: for each the name of
	// the stand-in, and the CPUs it was measured on, nil for all.
	MachineReadings(yield func(name string, cpus sample.Set, r Reading))
}
