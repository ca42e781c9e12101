package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// shortestSlice is the shortest slice that the kernel gives a thread (sched(7), Linux 6.12): the
// thread then runs sooner after it wakes up, and for no larger share of the time. Older kernels
// ignore it.
const shortestSlice = 100 * time.Microsecond

// Prefer gives every thread of this process a nice value and the shortest slice, so that it runs
// soon where CPU time is short; with nice 0 both are the usual ones again. Threads that Go starts
// later inherit them. A nice value below the present one needs CAP_SYS_NICE: without it only the
// slice is set, and the error wraps unix.EPERM or unix.EACCES. Real-time threads stay as they are.
func Prefer(nice int) error {
	var seen []int
	var refused error
	for {
		tids, err := ThreadsOf(os.Getpid())
		if err != nil {
			return fmt.Errorf("prefer this process: %w", err)
		}
		tids = slices.DeleteFunc(tids, func(tid int) bool { return slices.Contains(seen, tid) })
		if len(tids) == 0 {
			return refused
		}
		for _, tid := range tids { // a thread that is new by then may come of one that was not set
			if err := prefer(tid, nice); err != nil && !errors.Is(err, unix.ESRCH) {
				refused = fmt.Errorf("prefer this process: %w", err)
			}
		}
		seen = append(seen, tids...)
	}
}

func prefer(tid, nice int) error {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return err
	}
	was := a.Nice
	a.Nice, a.Runtime = int32(nice), 0
	if nice < 0 {
		a.Runtime = uint64(shortestSlice)
	}
	err = unix.SchedSetAttr(tid, a, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		a.Nice = was
		return errors.Join(err, unix.SchedSetAttr(tid, a, 0))
	}
	return err
}

// Niceness is the nice value of this process.
func Niceness() (int, error) {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 1 to 40
	return 20 - raw, err
}
