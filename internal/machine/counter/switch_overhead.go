package counter

import (
	"fmt"
	"time"
)

const (
	// tollTries is how often the toll is measured. The minimum is used, since other
	// activity of the machine only adds.
	tollTries = 40
	// expensiveSwitch is a toll that an operator should know of. On bare metal the toll is
	// some µs, mostly the system calls.
	expensiveSwitch = 20 * time.Microsecond
)

// measureSwitchOverhead measures the cost of switching a group of the source's events on and off again
// while it counts, on one CPU. A context switch between two cgroups, one of them
// counted, does the same to the counters. The kernel writes the CPU's registers for it;
// a hypervisor that emulates them traps each write. toll returns 0 if it cannot be
// measured.
func (g *groups) measureSwitchOverhead(cgroup int) (least time.Duration) {
	g.tour.begin(leastVisit)
	defer g.tour.end()
	for _, cpu := range g.cpus {
		g.tour.visit(cpu) // an interrupt would be measured too
		var c cpuGroup
		if g.open(&c, cgroup, cpu) != nil {
			continue // it is offline
		}
		defer g.close(&c)
		for _, fd := range c.fds[1:len(g.events)] {
			if g.sys.toggle(fd, true) != nil {
				return 0
			}
		}
		for range tollTries {
			begin := g.now()
			if g.sys.toggle(c.fds[0], true) != nil || g.sys.toggle(c.fds[0], false) != nil {
				return 0
			}
			if d := g.now().Sub(begin); least == 0 || d < least {
				least = d
			}
		}
		return least
	}
	return 0
}

// SetSwitchOverhead sets what the measurement says: the overhead, which includes the
// measurement's system calls, and whether that makes counting expensive.
func (i *Info) SetSwitchOverhead(d time.Duration) {
	i.Expensive = ""
	if i.SwitchOverhead = d; d < expensiveSwitch {
		return
	}
	i.Expensive = fmt.Sprintf("in a window, counting costs up to %s per context switch: the hypervisor seems to trap every access to a counter. "+
		"When the switches cost more than sampling.max_tax, %s is paused. Shorter or less frequent windows (sampling) cost less", d.Round(time.Microsecond), i.Signal)
}
