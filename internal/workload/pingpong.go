package workload

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// RoundTrip is how long a cache line takes from one CPU to another and back.
type RoundTrip struct {
	// Min and Median are over bursts of burstTrips round trips; each burst
	// gives its mean. A burst that was interrupted only raises the median.
	Min, Median time.Duration
	Bursts      int
	// CPU is what the measurement cost, both threads together.
	CPU time.Duration
}

// burstTrips is small enough that a burst (5 to 30 µs) fits many times into
// the few milliseconds that both threads run at once on busy CPUs, and large
// enough that reading the clock (50 ns) does not matter.
const burstTrips = 64

// ErrOneThread is returned where GOMAXPROCS is 1: two threads cannot run at
// once, so they cannot play.
var ErrOneThread = fmt.Errorf("ping-pong: GOMAXPROCS is 1, needs 2")

// pad keeps each word in lines of its own, also from the adjacent-line
// prefetcher's 128 bytes.
type pad struct {
	_ [128]byte
	v atomic.Int64
	_ [120]byte
}

// PingPong bounces a cache line between CPUs a and b for about d (50 ms says
// it well on idle CPUs and on busy ones; 5 ms does for a repeated look). The
// CPUs may be busy: bursts that were not interrupted decide. It fails if the
// threads never ran at the same time within 10·d.
func PingPong(a, b int, d time.Duration) (RoundTrip, error) {
	if a == b {
		return RoundTrip{}, fmt.Errorf("ping-pong: CPU %d with itself", a)
	}
	if runtime.GOMAXPROCS(0) < 2 {
		return RoundTrip{}, ErrOneThread
	}
	var ball pad // even: a's turn, odd: b's; negative: over
	spent := make(chan time.Duration, 1)
	failed := make(chan error, 1)
	go func() {
		failed <- onCPU(b, func() {
			start := threadTime()
			defer func() { spent <- threadTime() - start }()
			for next := int64(1); ; next += 2 {
				for ball.v.Load() != next {
					if ball.v.Load() < 0 {
						return
					}
				}
				ball.v.Store(next + 1)
			}
		})
	}()
	var rt RoundTrip
	bursts := make([]time.Duration, 0, 1<<14)
	err := onCPU(a, func() {
		start := threadTime()
		bursts = serveBall(&ball.v, d, bursts)
		rt.CPU = threadTime() - start
	})
	ball.v.Store(-1)
	if other := <-failed; err == nil {
		err = other
	}
	if err != nil {
		return RoundTrip{}, fmt.Errorf("ping-pong %d-%d: %w", a, b, err)
	}
	rt.CPU += <-spent
	if rt.Bursts = len(bursts); rt.Bursts == 0 {
		return RoundTrip{}, fmt.Errorf("ping-pong %d-%d: the CPUs were too busy to meet in %v", a, b, 10*d)
	}
	slices.Sort(bursts)
	rt.Min, rt.Median = bursts[0], bursts[len(bursts)/2]
	return rt, nil
}

// serveBall plays bursts for d, or until the first is done but at most 10·d,
// and appends the mean round trip of each.
func serveBall(ball *atomic.Int64, d time.Duration, bursts []time.Duration) []time.Duration {
	begin := time.Now()
	last := begin
	for turn := int64(0); len(bursts) < cap(bursts); {
		for range burstTrips {
			ball.Store(turn + 1)
			turn += 2
			for spins := 1; ball.Load() != turn; spins++ {
				if spins%4096 != 0 {
					continue
				}
				// The other thread is not running: is it worth waiting for?
				if waited := time.Since(begin); waited > 10*d || waited > d && len(bursts) > 0 {
					return bursts
				}
			}
		}
		now := time.Now()
		bursts = append(bursts, now.Sub(last)/burstTrips)
		last = now
		if now.Sub(begin) > d {
			break
		}
	}
	return bursts
}

// onCPU runs f on a thread that is bound to one CPU meanwhile.
func onCPU(cpu int, f func()) error {
	runtime.LockOSThread()
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("get affinity: %w", err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("bind to CPU %d: %w", cpu, err)
	}
	f()
	if err := unix.SchedSetaffinity(0, &old); err != nil {
		// The thread stays locked: it ends with its goroutine, bound as it is.
		return fmt.Errorf("unbind from CPU %d: %w", cpu, err)
	}
	runtime.UnlockOSThread()
	return nil
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	// It cannot fail for the caller's own clock.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// Near is the round trip below which two CPUs are said to share a last-level
// cache. Measured on a 2-vCPU AMD EPYC (Zen 3) guest: about 70 ns while they
// share it, 380 ns while they do not, nothing between; 180 ns is near the
// geometric middle and above what mesh-connected server chips take.
const Near = 180 * time.Nanosecond

// Shared reports whether the two CPUs of rt share a last-level cache now.
// The others are pairs of the same machine: where no pair at all is nearer
// than Near (a slow or emulated machine), rt counts as shared if it is within
// half again of the nearest pair while some other pair is at least twice as
// far; without such a contrast nothing can be told and it is not.
func Shared(rt RoundTrip, others ...RoundTrip) bool {
	if rt.Min < Near {
		return true
	}
	nearest, farthest := rt.Min, rt.Min
	for _, o := range others {
		nearest, farthest = min(nearest, o.Min), max(farthest, o.Min)
	}
	return nearest >= Near && farthest >= 2*nearest && 2*rt.Min <= 3*nearest
}
