package workload

import (
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The Go runtime's own threads must not be seen in what a workload does to a
// scheduler. Bound to one busy CPU, its monitor thread wakes up to 50,000
// times a second after each blocking call and then waits for the worker: 0.9 s
// of run-queue wait per CPU second was measured where there should be none.
// So the worker's calls go past the runtime (raw), which then wakes 100 times a
// second at most, and the runtime's threads do not wait when they do (hush).

// raw makes a system call of which the runtime is not told. The thread keeps
// the runtime's processor while it blocks, so it must be short.
func raw(trap, a, b, c, d uintptr) (uintptr, unix.Errno) {
	r, _, errno := unix.RawSyscall6(trap, a, b, c, d, 0, 0)
	return r, errno
}

// hush asks for the shortest slice, 0.1 ms, for every thread but the calling
// one, so that each preempts it on waking up instead of waiting for the end of
// its slice (sched_setattr(2), Linux 6.12). Older kernels take no heed, and
// before 6.6 a thread that wakes preempts anyway.
func hush() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return // without /proc it is only less quiet
	}
	for _, e := range tasks {
		tid, err := strconv.Atoi(e.Name())
		if err != nil || tid == unix.Gettid() {
			continue
		}
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil {
			attr.Runtime = uint64(100 * time.Microsecond)
			_ = unix.SchedSetAttr(tid, attr, 0)
		}
	}
}

// short is the longest sleep that need not be cut short by a stop.
const short = 20 * time.Millisecond

// sleep sleeps for d, or until a stop if d is long.
func (w *worker) sleep(d time.Duration) {
	switch {
	case d <= 0:
	case d <= short:
		ts := unix.NsecToTimespec(int64(d))
		for {
			// The runtime's signals cut it short; what remains is in ts then.
			_, errno := raw(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), uintptr(unsafe.Pointer(&ts)), 0, 0)
			if errno != unix.EINTR {
				return
			}
		}
	default:
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.ctx.Done():
		}
	}
}
