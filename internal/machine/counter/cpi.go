package counter

import (
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/quell-dev/quell/internal/core/sample"
	"golang.org/x/sys/unix"
)

// cpiCycles are the cycles that CPI can be counted in, best first: reference
// cycles (CPI², section 3.1: CPU_CLK_UNHALTED.REF) do not change with the
// clock frequency. AMD and most hypervisors offer core cycles only.
var cpiCycles = [...]event{
	{"ref-cycles", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_REF_CPU_CYCLES},
	{"core-cycles", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES},
}

var instructions = event{"instructions", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS}

// llcMisses returns the ways to count misses of the last-level cache, best first. The
// kernel's generic cache-misses counts them on Intel. On AMD it counts misses of the
// level before, on arm64 those of the first level; some arm64 cores have an event for
// the last level.
func llcMisses() []event {
	generic := event{"cache-misses", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_MISSES}
	level := event{"LLC-load-misses", unix.PERF_TYPE_HW_CACHE, unix.PERF_COUNT_HW_CACHE_LL |
		unix.PERF_COUNT_HW_CACHE_OP_READ<<8 | unix.PERF_COUNT_HW_CACHE_RESULT_MISS<<16}
	if runtime.GOARCH == "arm64" {
		return []event{level}
	}
	return []event{generic, level}
}

// OpenCPI returns the source of cycles per instruction (CPI², section 3.1), for the
// given CPUs; cgroup2 is the root of the cgroup tree that perf uses. Its variant is
// "ref-cycles" or "core-cycles". Its extras are Cycles, Instructions and, if the CPU
// can count them in the same group, LLCMisses. Without a PMU the error is a
// *NotSupportedError.
func OpenCPI(cpus sample.Set, cgroup2 string) (*Perf, error) { return openCPI(linux{}, cpus, cgroup2) }

// CPIOfCPUs returns a source of the same events of whole CPUs, for CPUGroups where perf sees no
// cgroups. It follows no task.
func CPIOfCPUs(cpus sample.Set) (*Perf, error) {
	return chooseCPI(newGroups(linux{}, cpus), cgroupDir{fd: anyCgroup})
}

func openCPI(sys perfSyscalls, cpus sample.Set, cgroup2 string) (*Perf, error) {
	g, root, err := openPerf(sys, cpus, cgroup2)
	if err != nil {
		return nil, fmt.Errorf("open cpi: %w", err)
	}
	defer root.close()
	return chooseCPI(g, root)
}

// chooseCPI tries the events in a cgroup.
func chooseCPI(g *groups, root cgroupDir) (*Perf, error) {
	check := func(e event) error { return g.check("event "+e.name, root, e) }
	// Each event is tried alone, so that a missing one affects only itself.
	if err := check(instructions); err != nil {
		return nil, fmt.Errorf("open cpi: %w", err)
	}
	p := &Perf{info: Info{Signal: sample.CPI}, fill: fillCPI, groups: g}
	cycles, err := firstOf(check, cpiCycles[:], &p.info.Missing)
	if err != nil {
		return nil, fmt.Errorf("open cpi: %w", err)
	}
	misses, err := firstOf(check, llcMisses(), &p.info.Missing)
	if err != nil && !unsupported(err) {
		return nil, fmt.Errorf("open cpi: %w", err)
	}
	// Events that open alone may still not fit together: the kernel refuses a
	// group that the counters could never hold at once.
	use := func(events ...event) *Perf {
		g.events, p.info.Variant = events, events[0].name
		p.info.SetSwitchOverhead(g.measureSwitchOverhead(root.fd))
		return p
	}
	for _, c := range cycles {
		for _, m := range misses {
			if err = g.try(root.fd, c, instructions, m); err == nil {
				return use(c, instructions, m), nil
			}
			p.info.Missing = append(p.info.Missing, notSupported(c.name+", instructions and "+m.name+" in one group", err))
		}
		if err = g.try(root.fd, c, instructions); err == nil {
			return use(c, instructions), nil
		}
		p.info.Missing = append(p.info.Missing, notSupported(c.name+" and instructions in one group", err))
	}
	return nil, fmt.Errorf("open cpi: %w", notSupported("cycles and instructions in one group", err))
}

// firstOf returns the events that can be opened, and notes those that cannot. The error
// is the last one's if none can be opened, or the first one that says nothing about the
// machine.
func firstOf(check func(event) error, events []event, missing *[]error) (usable []event, err error) {
	for _, e := range events {
		switch err = check(e); {
		case err == nil:
			usable = append(usable, e)
		case unsupported(err):
			*missing = append(*missing, err)
		default:
			return nil, err
		}
	}
	if len(usable) > 0 {
		return usable, nil
	}
	return nil, err
}

func unsupported(err error) bool {
	var e *NotSupportedError
	return errors.As(err, &e)
}

// CPIReading returns the reading of cycles, instructions and, if they were counted, misses of
// the last-level cache. enabled and running are the group's times, ns. partial: the counts are
// not all that the task did.
func CPIReading(counts []float64, coverage float64, enabled, running uint64, partial bool) Reading {
	r := Reading{Cost: math.NaN(), Coverage: coverage}
	if len(counts) < 2 || len(counts) > maxEvents || coverage < leastCoverage {
		r.Err = noCounters(enabled, running)
		return r
	}
	t := total{events: len(counts), enabled: enabled, partial: partial}
	copy(t.value[:], counts)
	return fillCPI(r, t)
}

func fillCPI(r Reading, t total) Reading {
	cycles, instr := t.value[0], t.value[1]
	switch {
	case cycles > 0 && instr > 0:
		r.Cost = cycles / instr
	case t.enabled > 0: // a guest's kernel is not told that its hypervisor has no counters
		r.Err = ErrNoCounters
	}
	if t.partial {
		return r
	}
	r.Extras.Set(sample.Cycles, cycles)
	r.Extras.Set(sample.Instructions, instr)
	if t.events > 2 {
		r.Extras.Set(sample.LLCMisses, t.value[2])
	}
	return r
}
