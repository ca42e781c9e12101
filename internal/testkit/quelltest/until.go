package quelltest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hang is how long [Until] waits. It guards against a test that hangs, is no bound
// on how soon a condition holds, and is less than go test waits for a package.
const hang = 4 * time.Minute

// Until waits for cond to hold; what names the condition. It replaces a sleep:
// a fast machine does not wait and a slow one does not fail.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	until(t, hang, what, cond)
}

func until(t testing.TB, guard time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(guard); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v, still not true: %s", guard, what)
		}
	}
}

// Paced is a condition for [Until] that is looked at every 50 ms at most: a look that asks a program
// takes this process, with the race detector, more CPU time than what it waits for.
func Paced(cond func() bool) func() bool {
	const pause = 50 * time.Millisecond
	next := time.Now()
	return func() bool {
		if time.Now().Before(next) {
			return false
		}
		yes := cond()
		next = time.Now().Add(pause)
		return yes
	}
}

// Fastest returns the least time of three that a piece of work says it took: without what a loaded machine adds. It is for
// work that an attacker could make many times as long.
func Fastest(work func() time.Duration) time.Duration { return min(work(), work(), work()) }

// CPUTime is the CPU time of this process so far. Other programs change a difference of it little.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
