package counter

import (
	"encoding/binary"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"golang.org/x/sys/unix"
)

// fake is a kernel that counts what a test says. It keeps to what quell relies on: an
// event counts only while it and its leader are on, and a group is read as a whole.
type fake struct {
	t      *testing.T
	events map[int]*fakeEvent
	next   int
	opened int
	reads  int
	// refuse returns why an event may not be opened, nil if it may. size is the number
	// of events that its group would have.
	refuse    func(attr *unix.PerfEventAttr, cpu, size int) error
	refuseOn  error // error of switching a group on
	readError map[int]error
	shorten   map[int]int // bytes by which a read on that CPU is short
}

type fakeEvent struct {
	inode            uint64
	cpu, leader      int
	attr             unix.PerfEventAttr
	members          []int
	on               bool
	value            uint64
	enabled, running uint64
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, events: map[int]*fakeEvent{}, next: 1000,
		refuse:    func(*unix.PerfEventAttr, int, int) error { return nil },
		readError: map[int]error{}, shorten: map[int]int{}}
	t.Cleanup(func() {
		if len(f.events) > 0 {
			t.Errorf("%d events left open", len(f.events))
		}
	})
	return f
}

func (f *fake) open(attr *unix.PerfEventAttr, cgroup, cpu, leader int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(cgroup, &st); err != nil && cgroup != anyCgroup {
		f.t.Errorf("open with a bad cgroup descriptor: %v", err)
	}
	size := 1
	if leader >= 0 {
		size = len(f.events[leader].members) + 1
	}
	if err := f.refuse(attr, cpu, size); err != nil {
		return -1, err
	}
	f.next++
	f.opened++
	e := &fakeEvent{inode: st.Ino, cpu: cpu, leader: leader, attr: *attr}
	if leader < 0 {
		e.leader = f.next
	}
	f.events[f.next] = e
	l := f.events[e.leader]
	l.members = append(l.members, f.next)
	return f.next, nil
}

func (f *fake) toggle(fd int, on bool) error {
	e := f.events[fd]
	if e == nil {
		f.t.Errorf("toggle of %d, which is not open", fd)
		return unix.EBADF
	}
	if on && e.leader == fd && f.refuseOn != nil {
		return f.refuseOn
	}
	if e.on == on {
		f.t.Errorf("event on CPU %d is on=%v already", e.cpu, on)
	}
	e.on = on
	return nil
}

func (f *fake) read(fd int, buf []byte) (int, error) {
	f.reads++
	e := f.events[fd]
	if err := f.readError[e.cpu]; err != nil {
		return 0, err
	}
	words := []uint64{uint64(len(e.members)), e.enabled, e.running}
	for _, m := range e.members {
		words = append(words, f.events[m].value)
	}
	var b []byte
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	if len(b) > len(buf) {
		return 0, unix.ENOSPC
	}
	return copy(buf, b[:len(b)-f.shorten[e.cpu]]), nil
}

func (f *fake) close(fd int) {
	if f.events[fd] == nil {
		f.t.Errorf("close of %d, which is not open", fd)
	}
	delete(f.events, fd)
}

// tick is what a group does on one CPU while it is on.
type tick struct {
	enabled, running uint64
	values           [maxEvents]uint64
}

// run makes the groups of a cgroup on a CPU count what tick says.
func (f *fake) run(inode uint64, cpu int, did tick) {
	for _, e := range f.events {
		if e.inode != inode || e.cpu != cpu || len(e.members) == 0 || !e.on {
			continue
		}
		e.enabled += did.enabled
		e.running += did.running
		for i, m := range e.members {
			if f.events[m].on {
				f.events[m].value += did.values[i]
			}
		}
	}
}

// inodeOf returns the inode of a directory, by which the fake distinguishes cgroups.
func inodeOf(t *testing.T, dir string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func key(n uint64) sample.TaskKey { return sample.TaskKey{Inode: n, FirstSeen: 1} }

// stopped ends a window and collects its readings.
func stopped(t *testing.T, s Source, cpu CPUTime) map[sample.TaskKey]Reading {
	t.Helper()
	got := map[sample.TaskKey]Reading{}
	end := WindowEnd{CPU: cpu}
	if p, ok := s.(*Perf); ok {
		end.Next = p.groups.linger // as the test has set it
	}
	if err := s.Stop(end, func(k sample.TaskKey, r Reading) {
		if _, twice := got[k]; twice {
			t.Errorf("two readings for %s", k)
		}
		got[k] = r
	}); err != nil {
		t.Fatal(err)
	}
	return got
}
