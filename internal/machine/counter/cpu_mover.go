package counter

import (
	"cmp"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cpuMover moves the calling thread from CPU to CPU. An operation on a perf event runs on
// the event's CPU: from elsewhere each call interrupts that CPU and waits for the
// answer, which on a virtual machine costs several times the work itself
// (BenchmarkToggle).
//
// A thread of higher priority may occupy a CPU for any time. So the thread gets its
// CPUs back after patience, and continues from where it then is: that costs more and is
// equally correct.
type cpuMover struct {
	mu       sync.Mutex
	thread   int  // the thread that is away, 0 if none is
	late     bool // patience is over
	home     unix.CPUSet
	watchdog *time.Timer
	patience time.Duration // 0: patience; tests set it
}

const (
	// patience is the longest time that a whole tour may take before it is cut short.
	patience = 100 * time.Millisecond
	// leastVisit is the number of groups per CPU that makes a tour worth its moves.
	leastVisit = 4
)

// begin starts a tour with n operations on each CPU. Until end the calling goroutine
// stays on its thread.
func (t *cpuMover) begin(n int) {
	if n < leastVisit {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	runtime.LockOSThread()
	if unix.SchedGetaffinity(0, &t.home) != nil { // more than 1024 CPUs, or not allowed
		runtime.UnlockOSThread()
		return
	}
	t.thread, t.late = unix.Gettid(), false
	wait := cmp.Or(t.patience, patience)
	if t.watchdog == nil {
		t.watchdog = time.AfterFunc(wait, t.restoreAffinity)
	} else {
		t.watchdog.Reset(wait)
	}
}

// restoreAffinity gives the thread its CPUs back, repeatedly until the tour ends: visit may be
// about to take them away.
func (t *cpuMover) restoreAffinity() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.thread == 0 {
		return
	}
	t.late = true
	setAffinity(t.thread, &t.home)
	t.watchdog.Reset(patience / 10)
}

// moveTo moves to a CPU of the thread's own affinity. An operator may have set that to keep the
// agent off the others, which do without it: they are interrupted.
func (t *cpuMover) moveTo(cpu int) {
	if t.home.IsSet(cpu) {
		t.visit(cpu)
	}
}

// visit moves to a CPU if it can: one outside the thread's cpuset is refused.
func (t *cpuMover) visit(cpu int) {
	t.mu.Lock()
	goes := t.thread != 0 && !t.late
	t.mu.Unlock()
	if goes {
		var there unix.CPUSet
		there.Set(cpu)
		setAffinity(0, &there)
	}
}

func (t *cpuMover) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.thread == 0 {
		return
	}
	t.thread = 0
	t.watchdog.Stop()
	setAffinity(0, &t.home)
	runtime.UnlockOSThread()
}

// setAffinity is sched_setaffinity(2); 0 is the calling thread. While the thread waits for its
// new CPU, unix.SchedSetaffinity would keep Go's scheduler from running anything else,
// such as the watchdog. A refusal changes nothing that matters.
func setAffinity(thread int, to *unix.CPUSet) {
	unix.Syscall(unix.SYS_SCHED_SETAFFINITY, uintptr(thread), unsafe.Sizeof(*to), uintptr(unsafe.Pointer(to)))
}
