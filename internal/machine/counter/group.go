package counter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

const (
	// maxEvents is the largest number of events in a group.
	maxEvents = 3
	// leastCoverage is the share of a window that must really have been counted for its
	// scaled-up counts to be used.
	leastCoverage = 0.5
)

// groups holds one perf group per task and CPU. A group is opened once, stays disabled
// between windows and is enabled for a window. Measured, an enabled group costs a
// context switch between cgroups 1.2 to 1.4 µs, so only while a window is open;
// toggling costs a third of opening again.
//
// An operation on all groups goes CPU by CPU, from that CPU: see tour.
type groups struct {
	sys    perfSyscalls
	cpus   []int
	events []event
	// perWindow opens the groups for each window instead. It is for an event whose open
	// descriptor alone costs the machine something.
	perWindow bool

	tasks      map[sample.TaskKey]*groupTask
	order      []*groupTask // as added, so that all windows are equally long
	windowOpen bool
	linger     bool      // leave counting groups enabled at the next stop
	from       time.Time // of the open window
	now        func() time.Time
	tour       cpuMover
	buf        [8 * (3 + maxEvents)]byte
	offline    map[int]bool // CPUs that Start has just found offline
	cgroups    string       // /proc/cgroups, by which a refusal is explained
}

type groupTask struct {
	key      sample.TaskKey
	dir      string
	inode    uint64
	cpus     []cpuGroup // in the order of groups.cpus
	counting bool       // in the open window
}

// cpuGroup is a task's group on one CPU.
type cpuGroup struct {
	fds     [maxEvents]int // leader first
	isOpen  bool
	on      bool // it is enabled
	offline bool // not open because the CPU is not there: nothing runs on it
	last    [maxEvents]sample.Count
}

// total is what a task's groups counted in one window, summed over CPUs.
type total struct {
	events           int
	value            [maxEvents]float64
	enabled, running uint64
	cpus, lost       int  // CPUs, and those of them that could not be read
	partial          bool // a CPU is missing from value
	restarted        bool
	span             time.Duration
}

// coverage returns the counted share. A CPU that the task did not run on was not
// enabled and does not lower it. A CPU that could not be read counts as a full share,
// since it is not known how long the task ran on it.
func (t total) coverage() float64 {
	if t.cpus == t.lost {
		return 0
	}
	c := float64(t.cpus-t.lost) / float64(t.cpus)
	if t.enabled > 0 {
		c *= min(1, float64(t.running)/float64(t.enabled))
	}
	return c
}

func newGroups(sys perfSyscalls, cpus sample.Set) *groups {
	return &groups{
		sys: sys, cpus: cpus.Numbers(), now: time.Now,
		tasks: map[sample.TaskKey]*groupTask{}, offline: map[int]bool{}, cgroups: "/proc/cgroups",
	}
}

func (g *groups) start() error {
	if g.windowOpen {
		return ErrOpen
	}
	g.windowOpen = true
	g.reopen()
	g.from = g.now()
	g.toggle(true)
	for _, t := range g.order {
		t.counting = true
	}
	return nil
}

// stop disables all groups before it reads any: reading many tasks then does not
// lengthen the windows of the last ones. A disabled group can be read without asking
// its CPU.
//
// If the next window begins at once nothing is disabled, since that would cost more
// than all the reading. For each task the window then ends, and the next one begins,
// when the task is read. A task that has not run has counted nothing and is not read:
// what it does later belongs to the next window. idle reports whether a task has not
// run; it may be nil.
func (g *groups) stop(idle func(sample.TaskKey) bool, yield func(*groupTask, total)) error {
	if !g.windowOpen {
		return ErrNotOpen
	}
	g.windowOpen = false
	span := g.now().Sub(g.from)
	if !g.linger || g.perWindow {
		g.toggle(false)
		idle = nil // tasks may have run since idle was known
	}
	for _, t := range g.order {
		if !t.counting {
			continue
		}
		t.counting = false
		if idle != nil && idle(t.key) && t.whole() {
			yield(t, total{events: len(g.events), cpus: len(t.cpus), span: span})
		} else {
			yield(t, g.read(t, span))
		}
	}
	if g.perWindow {
		g.tour.begin(len(g.order))
		for i, cpu := range g.cpus {
			g.tour.moveTo(cpu)
			for _, t := range g.order {
				g.close(&t.cpus[i])
			}
		}
		g.tour.end()
	}
	return nil
}

// toggle enables or disables all groups that are not in that state yet. A group that
// cannot be switched is closed.
func (g *groups) toggle(on bool) {
	if !slices.ContainsFunc(g.order, func(t *groupTask) bool { return t.needs(on) }) {
		return
	}
	g.tour.begin(len(g.order))
	defer g.tour.end()
	for i, cpu := range g.cpus {
		g.tour.moveTo(cpu)
		for _, t := range g.order {
			g.switchOne(&t.cpus[i], on)
		}
	}
}

// needs reports whether a group of the task is not in that state yet.
func (t *groupTask) needs(on bool) bool {
	for i := range t.cpus {
		if c := &t.cpus[i]; c.isOpen && c.on != on {
			return true
		}
	}
	return false
}

func (g *groups) switchOne(c *cpuGroup, on bool) {
	if !c.isOpen || c.on == on {
		return
	}
	if g.turn(c, on) != nil {
		g.close(c)
		return
	}
	c.on = on
}

// turn enables or disables a group. Its leader is enabled last and disabled first, so
// that all members count for the same time. Members are disabled between windows too: a
// cgroup with an enabled event, even if its leader keeps it from counting, costs each
// switch to or from it a microsecond (perf_cgroup_switch in kernel/events/core.c
// returns early if there is none).
func (g *groups) turn(c *cpuGroup, on bool) error {
	if !on {
		if err := g.sys.toggle(c.fds[0], false); err != nil {
			return err
		}
	}
	for _, fd := range c.fds[1:len(g.events)] {
		if err := g.sys.toggle(fd, on); err != nil {
			return err
		}
	}
	if on {
		return g.sys.toggle(c.fds[0], true)
	}
	return nil
}

// whole reports whether the task is counted on every CPU that it can run on.
func (t *groupTask) whole() bool {
	for i := range t.cpus {
		if c := &t.cpus[i]; !c.isOpen && !c.offline {
			return false
		}
	}
	return true
}

// remove closes a task's groups. In an open window it reads them first, which works
// after rmdir too (the open descriptors keep the cgroup in memory: see
// nr_dying_descendants in cgroup.stat).
func (g *groups) remove(key sample.TaskKey) (sum total, counted bool) {
	t := g.tasks[key]
	if t == nil {
		return total{}, false
	}
	if t.counting {
		for i := range t.cpus {
			g.switchOne(&t.cpus[i], false)
		}
		sum, counted = g.read(t, g.now().Sub(g.from)), true
	}
	g.forget(t)
	return sum, counted
}

func (g *groups) closeAll() {
	for _, t := range g.order {
		g.closeTask(t)
	}
	clear(g.tasks)
	g.order, g.windowOpen = nil, false
}

// read sums what the task's groups counted since the last read. A group that cannot be
// read is closed, to be opened again at the next Start: taking its CPU offline, for
// example, breaks up a group permanently.
func (g *groups) read(t *groupTask, span time.Duration) total {
	sum := total{events: len(g.events), cpus: len(t.cpus), span: span}
	for i := range t.cpus {
		c := &t.cpus[i]
		if c.offline {
			continue
		}
		cur, err := g.readGroup(c)
		if err != nil {
			g.close(c)
			sum.lost++
			sum.partial = true
			continue
		}
		for e := range g.events {
			d := cur[e].Since(c.last[e])
			sum.value[e] += d.Value
			sum.restarted = sum.restarted || d.Restart
			sum.partial = sum.partial || d.Uncounted
			if e == 0 { // the times are the group's
				sum.enabled += d.Enabled
				sum.running += d.Running
			}
		}
		c.last = cur
	}
	return sum
}

// readGroup reads all events of a group at once. The format is that of
// perf_event_open(2) for PERF_FORMAT_GROUP with both times and no ids:
// u64 nr, time_enabled, time_running, value[nr].
func (g *groups) readGroup(c *cpuGroup) (cur [maxEvents]sample.Count, err error) {
	if !c.isOpen {
		return cur, errors.New("read group: not open")
	}
	want := 8 * (3 + len(g.events))
	n, err := g.sys.read(c.fds[0], g.buf[:want])
	if err != nil {
		return cur, fmt.Errorf("read group: %w", err)
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(g.buf[8*i:]) }
	if n != want { // nr says the same
		return cur, fmt.Errorf("read group: %d bytes, want %d", n, want)
	}
	for e := range g.events {
		cur[e] = sample.Count{Enabled: word(1), Running: word(2), Value: word(3 + e)}
	}
	return cur, nil
}
