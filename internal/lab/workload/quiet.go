package workload

import (
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The Go runtime's own threads must not affect the scheduling of a workload. Bound to one
// busy CPU, its monitor thread wakes up to 50,000 times a second after each blocking call
// and then waits for the worker: 0.9 s of run-queue wait per CPU second was measured
// instead of none. So the worker's calls bypass the runtime (raw), which then wakes at
// most 100 times a second, and its threads do not wait when they wake up (hush).

// raw makes a system call without telling the runtime. The thread keeps the runtime's
// processor while it blocks, so the call must be short.
func raw(trap, a, b, c, d uintptr) (uintptr, unix.Errno) {
	r, _, errno := unix.RawSyscall6(trap, a, b, c, d, 0, 0)
	return r, errno
}

// shortenSlices requests the shortest slice, 0.1 ms, for every thread except the calling one, so
// that each preempts the calling thread on wake-up instead of waiting for the end of its
// slice (sched_setattr(2), Linux 6.12). Older kernels ignore it; before 6.6 a waking
// thread preempts anyway.
func shortenSlices() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return // without /proc the process is only less quiet
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

// short is the longest sleep that a stop need not interrupt.
const short = 20 * time.Millisecond

// sleep sleeps for d, or until a stop if d is long.
func (w *worker) sleep(d time.Duration) {
	switch {
	case d <= 0:
	case d <= short:
		ts := unix.NsecToTimespec(int64(d))
		for {
			// The runtime's signals interrupt it; ts then has the remaining time.
			_, errno := raw(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), uintptr(unsafe.Pointer(&ts)), 0, 0)
			if errno != unix.EINTR {
				return
			}
		}
	default:
		select {
		case <-time.After(d):
		case <-w.ctx.Done():
		}
	}
}
