package counter

import (
	"errors"
	"fmt"
	"time"
)

// anyCgroup, for perfSyscalls.open, counts whatever runs on the CPU.
const anyCgroup = -1

// CPUGroups are groups of the same events, one on each CPU, that count whatever runs there:
// CPUs × events descriptors. They are off until Toggle. It is used from one goroutine.
type CPUGroups struct {
	g  groups
	on map[int]*cpuGroup // by CPU
}

// NewCPUGroups returns groups of up to three events; none is open yet.
func NewCPUGroups(events ...Event) *CPUGroups {
	c := &CPUGroups{g: groups{sys: linux{}, now: time.Now}, on: map[int]*cpuGroup{}}
	for _, e := range events {
		c.g.events = append(c.g.events, e.event)
	}
	return c
}

// Events returns the number of events in a group.
func (c *CPUGroups) Events() int { return len(c.g.events) }

// Has reports whether a CPU's group is open.
func (c *CPUGroups) Has(cpu int) bool { return c.on[cpu] != nil }

// Open opens the group of a CPU and returns its descriptors, in the order of events. If the CPU
// is offline the error is ENODEV. Other errors: *FDLimitError, *NotSupportedError.
func (c *CPUGroups) Open(cpu int) ([]int, error) {
	if n := len(c.g.events); n == 0 || n > maxEvents {
		return nil, fmt.Errorf("open group on CPU %d: %d events, want 1 to %d", cpu, n, maxEvents)
	}
	var at cpuGroup
	err := c.g.open(&at, anyCgroup, cpu)
	switch {
	case err == nil:
		c.on[cpu] = &at
		return at.fds[:len(c.g.events)], nil
	case at.offline:
		return nil, err
	case outOfFDs(err):
		return nil, &FDLimitError{len(c.g.events), len(c.on) * len(c.g.events), fdLimit(), err}
	}
	return nil, notSupported("event group on CPUs", err)
}

// Whole reports whether the group of a CPU, which is off, is still one. Taking its CPU offline takes it apart for
// ever; an eBPF program reads its events as before, and they count nothing.
func (c *CPUGroups) Whole(cpu int) bool {
	_, err := c.g.readGroup(c.on[cpu])
	return err == nil
}

// CloseCPU closes the group of a CPU.
func (c *CPUGroups) CloseCPU(cpu int) {
	if at := c.on[cpu]; at != nil {
		c.g.close(at)
		delete(c.on, cpu)
	}
}

// Toggle switches all groups on or off, each from its own CPU. It joins the errors of those that
// cannot be switched; they stay as they are.
func (c *CPUGroups) Toggle(on bool) error {
	c.g.tour.begin(leastVisit)
	defer c.g.tour.end()
	var errs []error
	for cpu, at := range c.on {
		if at.on == on {
			continue
		}
		c.g.tour.moveTo(cpu)
		if err := c.g.turn(at, on); err != nil {
			errs = append(errs, fmt.Errorf("switch group on CPU %d: %w", cpu, err))
			continue
		}
		at.on = on
	}
	return errors.Join(errs...)
}

// Close closes all groups.
func (c *CPUGroups) Close() {
	for cpu := range c.on {
		c.CloseCPU(cpu)
	}
}
