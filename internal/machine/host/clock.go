package host

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic is the kernel's CLOCK_MONOTONIC in ns, which all processes share.
func Monotonic() int64 { return clock(unix.CLOCK_MONOTONIC) }

// ThreadCPU is the CPU time of the calling thread.
func ThreadCPU() time.Duration { return time.Duration(clock(unix.CLOCK_THREAD_CPUTIME_ID)) }

func clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err) // every kernel has these two
	}
	return ts.Nano()
}
