//go:build linux

package counter

import (
	"fmt"
	"time"
)

const (
	// tollTries is how often the toll is measured; the least counts, since what
	// else the machine does only adds.
	tollTries = 40
	// dearToll is a toll that people should know of. On bare metal it is some µs,
	// of which the system calls are most.
	dearToll = 20 * time.Microsecond
)

// toll measures what it costs to switch a group of the source's events on and
// off again while it counts, on one CPU. A context switch between two cgroups
// of which one is counted does the same to the counters. The kernel does it by
// writing the CPU's registers; a hypervisor that emulates them traps each write.
// It returns 0 if it cannot be measured.
func (g *groups) toll(cgroup int) (least time.Duration) {
	g.tour.begin(leastVisit)
	defer g.tour.end()
	for _, cpu := range g.cpus {
		g.tour.visit(cpu)
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

// Toll is what counting adds to a context switch between cgroups in a window:
// at most, since the system calls by which it was measured are in it. 0 if it
// is not known.
func (p *Perf) Toll() time.Duration { return p.tolled }

// Dear says that counting costs the machine much, and what to do; "" if it
// does not.
func (p *Perf) Dear() string {
	if p.tolled < dearToll {
		return ""
	}
	return fmt.Sprintf("in a window, counting costs up to %s a context switch here: the hypervisor seems to trap every access to a counter. "+
		"While tasks switch so often that this exceeds sampling.max_tax, %s rests. Shorter or rarer windows (sampling) cost less", p.tolled.Round(time.Microsecond), p.signal)
}
