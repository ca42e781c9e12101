package counter

import (
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Windows that follow each other at once need no switching, miss nothing that runs
// between them, and include tasks that were added. (The fake fails a group that is
// switched to the state that it is in.)
func TestLinger(t *testing.T) {
	f, p, inode := fakeCPI(t)
	ons := func() (n int) {
		for _, e := range f.events {
			if e.on {
				n++
			}
		}
		return n
	}
	start(t, p)
	p.groups.linger = true
	f.run(inode, 0, tick{100, 100, [3]uint64{300, 100, 0}})
	if r := stopped(t, p, nil)[key(1)]; r.Cost != 3 {
		t.Errorf("the first window: cost %v, want 3", r.Cost)
	}
	before := ons()
	if before == 0 {
		t.Error("the groups were switched off for nothing")
	}
	f.run(inode, 0, tick{100, 100, [3]uint64{500, 100, 0}}) // in the next window
	dir := t.TempDir()
	if err := p.Add(Target{Key: key(2), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	start(t, p)
	if n := ons(); n != 2*before {
		t.Errorf("%d groups are on with a second task, want %d", n, 2*before)
	}
	f.run(inode, 0, tick{100, 100, [3]uint64{500, 100, 0}})
	f.run(inodeOf(t, dir), 0, tick{100, 100, [3]uint64{700, 100, 0}})
	p.groups.linger = false
	got := stopped(t, p, nil)
	if r := got[key(1)]; r.Cost != 5 {
		t.Errorf("the second window: cost %v, want 5", r.Cost)
	}
	if r := got[key(2)]; r.Cost != 7 {
		t.Errorf("the task that came: cost %v, want 7", r.Cost)
	}
	if n := ons(); n != 0 {
		t.Errorf("%d groups are still on", n)
	}

	// Removed while they linger: the task's groups are closed, without a reading.
	start(t, p)
	p.groups.linger = true
	stopped(t, p, nil)
	if _, ok := p.Remove(key(2), 0); ok {
		t.Error("a reading between windows")
	}
	start(t, p)
	p.groups.linger = false
	stopped(t, p, nil)
}

// In windows that follow each other a task that used no CPU time is not read. Its
// reading is that of a cgroup that counted nothing, and what it did after its usage was
// read belongs to the next window.
func TestIdleTasksAreNotRead(t *testing.T) {
	f, p, inode := fakeCPI(t)
	used, known := time.Duration(0), true
	cpu := func(sample.TaskKey) (time.Duration, bool) { return used, known }
	window := func() (Reading, int) {
		t.Helper()
		start(t, p)
		before := f.reads
		r, ok := stopped(t, p, cpu)[key(1)]
		if !ok {
			t.Fatal("no reading")
		}
		return r, f.reads - before
	}
	p.groups.linger = true
	used = 1
	zero, reads := window()
	if reads == 0 {
		t.Fatal("a task that used CPU time was not read")
	}
	used = 0
	idle, n := window()
	if n != 0 {
		t.Errorf("%d reads of an idle task", n)
	}
	if math.IsNaN(zero.Cost) != math.IsNaN(idle.Cost) || zero.Coverage != idle.Coverage || zero.Extras != idle.Extras || zero.Flags != idle.Flags {
		t.Errorf("read as %+v, not read as %+v", zero, idle)
	}
	f.run(inode, 0, tick{100, 100, [3]uint64{300, 100, 0}})
	window()
	used = 1
	if r, _ := window(); r.Cost != 3 {
		t.Errorf("cost %v once its usage tells, want 3", r.Cost)
	}
	used, known = 0, false
	if _, n := window(); n != reads {
		t.Errorf("%d reads where the usage is not known, want %d", n, reads)
	}
	known = true
	p.groups.linger = false // a group that is switched off is read
	if _, n := window(); n != reads {
		t.Errorf("%d reads at the last window's end, want %d", n, reads)
	}
}

// A CPU that is added is counted from the next window on, for tasks that are followed
// already. A CPU that is named again is not counted twice.
func TestCPUsThatCome(t *testing.T) {
	f := newFake(t)
	g := newGroups(f, sample.SetOf(0))
	g.events = []event{cpiCycles[0], instructions}
	p := &Perf{info: Info{Signal: sample.CPI}, fill: fillCPI, groups: g}
	defer p.Close()
	dir := t.TempDir()
	inode := inodeOf(t, dir)
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	window := func() Reading {
		start(t, p)
		f.run(inode, 0, tick{100, 100, [3]uint64{300, 100}})
		f.run(inode, 1, tick{100, 100, [3]uint64{700, 100}})
		return stopped(t, p, nil)[key(1)]
	}
	if r := window(); r.Cost != 3 {
		t.Errorf("on one CPU the cost is %v, want 3", r.Cost)
	}
	for range 2 {
		p.SetCPUs(sample.SetOf(0, 1))
		if r := window(); r.Cost != 5 || r.Coverage != 1 {
			t.Errorf("on both the cost is %v with a coverage of %v, want 5 and 1", r.Cost, r.Coverage)
		}
	}
	if n := p.Info().WindowFDs; n != 4 || len(f.events) != 4 {
		t.Errorf("%d descriptors, %d events open, want 4", n, len(f.events))
	}
	p.SetCPUs(sample.SetOf(1)) // the kernel reports when a CPU is gone
	if r := window(); r.Cost != 5 {
		t.Errorf("cost %v, want 5", r.Cost)
	}
}
