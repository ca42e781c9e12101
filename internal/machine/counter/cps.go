package counter

import (
	"fmt"

	"github.com/quell-dev/quell/internal/core/sample"
)

// VariantCPS is what is counted for cps, part of a spec's key.
const VariantCPS = "sys-enter"

// OpenCPS returns the source of CPU time per system call: the task clock and
// the tracepoint raw_syscalls:sys_enter in one group, for the given CPUs;
// cgroup2 is the root of the cgroup tree that perf uses. Its cost is in
// CPU-s/call, its rate in calls/s, its extra is Syscalls, its variant
// "sys-enter".
//
// The descriptors are open only in windows. While any of them is open the
// tracepoint is registered, and every system call of the machine, of a followed
// task or not, takes the kernel's slow entry path: 60 to 110 ns more a call where
// it was measured, which soon exceeds the cost of opening.
//
// Kernels without the tracepoint give a *NotSupportedError.
func OpenCPS(cpus sample.Set, cgroup2 string) (*Perf, error) {
	enter, err := tracepoint("raw_syscalls/sys_enter")
	if err != nil {
		return nil, fmt.Errorf("open cps: %w", err)
	}
	return openCPS(linux{}, cpus, cgroup2, enter)
}

func openCPS(sys perfSyscalls, cpus sample.Set, cgroup2 string, enter event) (*Perf, error) {
	g, root, err := openPerf(sys, cpus, cgroup2)
	if err != nil {
		return nil, fmt.Errorf("open cps: %w", err)
	}
	defer root.close()
	g.events, g.perWindow = []event{taskClock, enter}, true
	if err := g.check("tracepoint "+enter.name, root, g.events...); err != nil {
		return nil, fmt.Errorf("open cps: %w", err)
	}
	return &Perf{info: Info{Signal: sample.CPS, Variant: VariantCPS}, fill: fillCPS, groups: g}, nil
}

func fillCPS(r Reading, t total) Reading {
	seconds, calls := t.value[0]/1e9, t.value[1]
	if calls > 0 {
		r.Cost = seconds / calls
	}
	if !t.partial {
		r.Extras.Set(sample.Syscalls, calls)
	}
	return r
}
