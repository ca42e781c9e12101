package counter

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Capabilities tries each thing that the perf sources need: perf in cgroup mode, every
// hardware event alone and the system call tracepoint. cgroup2 is the root of the cgroup
// tree that perf uses, "" if there is none.
func Capabilities(cgroup2 string, cpus sample.Set) []host.Capability {
	g := newGroups(linux{}, cpus)
	root, rootErr := g.openRoot(cgroup2)
	if rootErr == nil {
		defer root.close()
	}
	try := func(what string, e event) error {
		if rootErr != nil {
			return rootErr
		}
		return g.check(what, root, e)
	}
	all := []host.Capability{CapabilityOf("perf cgroup mode", "software events are counted per cgroup", try("event "+taskClock.name, taskClock))}
	for _, e := range append(append(cpiCycles[:], instructions), llcMisses()...) {
		c := CapabilityOf("perf "+e.name, "counted per cgroup", try("event "+e.name, e))
		if c.OK && watchdog() {
			c.Detail += "; the NMI watchdog holds one of the counters"
		}
		if c.OK {
			g.events = []event{e}
			c.Detail += fmt.Sprintf("; switching it on and off takes %s", g.measureSwitchOverhead(root.fd).Round(100*time.Nanosecond))
		}
		all = append(all, c)
	}
	enter, tpErr := tracepoint("raw_syscalls/sys_enter")
	if tpErr == nil {
		tpErr = try("tracepoint "+enter.name, enter)
	}
	return append(all, CapabilityOf("tracepoint raw_syscalls:sys_enter", "counted per cgroup", tpErr))
}

// CapabilityOf returns the capability for err, with detail if err is nil.
func CapabilityOf(name, detail string, err error) host.Capability {
	if err == nil {
		return host.Present(name, detail)
	}
	c := host.Capability{Name: name, Reason: err.Error()}
	if e := (*NotSupportedError)(nil); errors.As(err, &e) {
		c.Reason, c.Remedy = e.Reason, e.Remedy
	}
	return c
}

func watchdog() bool {
	text, err := os.ReadFile("/proc/sys/kernel/nmi_watchdog")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// leastTasks is the number of tasks that the descriptors should be enough for: the pods
// of a Kubernetes node by default.
const leastTasks = 110

// DescriptorCapability says how many tasks can be counted at once within RLIMIT_NOFILE if all
// sources together take perTask descriptors for each (Info.WindowFDs). If there are more, they
// take turns.
func DescriptorCapability(perTask int) host.Capability {
	const name = "file descriptors"
	limit := fdLimit()
	if perTask == 0 {
		return host.Present(name, fmt.Sprintf("%d; no signal takes any for a task", limit))
	}
	tasks := limit / uint64(perTask)
	text := fmt.Sprintf("%d descriptors are enough to count about %d tasks at once, %d for each; more take turns", limit, tasks, perTask)
	if tasks < leastTasks {
		return host.Missing(name, text, fmt.Sprintf("raise LimitNOFILE to %d", leastTasks*perTask))
	}
	return host.Present(name, text)
}
