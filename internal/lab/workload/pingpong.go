package workload

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// RoundTrip is how long a cache line takes from one CPU to another and back.
type RoundTrip struct {
	// Min and Median are over bursts of burstTrips round trips; each burst gives its
	// mean. An interrupted burst only raises the median.
	Min, Median time.Duration
	Bursts      int
	// CPU is the CPU time of the measurement, of both threads.
	CPU time.Duration
}

// burstTrips is small enough that a burst (5 to 30 µs) fits many times into the few
// milliseconds in which both threads run at once on busy CPUs, and large enough that
// reading the clock (50 ns) does not matter.
const burstTrips = 64

// leastBursts is enough that one burst is probably not interrupted.
const leastBursts = 8

const (
	// arrival limits the time until a thread is on its CPU; on a busy CPU it must first
	// be scheduled before it can be bound and its priority raised.
	arrival = 3 * time.Second
	// patience limits the time in which both spin without running at once.
	patience = 250 * time.Millisecond
)

var (
	// ErrOneThread is returned where GOMAXPROCS is 1: two threads cannot run at once.
	ErrOneThread = errors.New("GOMAXPROCS is 1, needs 2")
	// ErrNotParallel is returned if the CPUs were too busy with other work, or are emulated
	// one after the other.
	ErrNotParallel = errors.New("the two threads never ran at once")
)

// pad keeps each word in its own lines, also with respect to the 128 bytes of the
// adjacent-line prefetcher.
type pad struct {
	_ [128]byte
	v atomic.Int64
	_ [120]byte
}

// PingPong passes a cache line between CPUs a and b for about d (50 ms is enough on idle
// and on busy CPUs, 5 ms for a repeated measurement). The CPUs may be busy: the bursts
// that were not interrupted determine the result. It gives up with ErrNotParallel after some
// seconds. Built with -race, which makes atomics ten times slower, it measures those
// instead.
func PingPong(a, b int, d time.Duration) (RoundTrip, error) {
	if a == b {
		return RoundTrip{}, fmt.Errorf("ping-pong: CPU %d with itself", a)
	}
	if runtime.GOMAXPROCS(0) < 2 {
		return RoundTrip{}, fmt.Errorf("ping-pong %d-%d: %w", a, b, ErrOneThread)
	}
	var ball pad // even: a's turn, odd: b's; negative: over
	var atA, atB atomic.Bool
	spent := make(chan time.Duration, 2)
	failed := make(chan error, 2)
	go func() {
		defer ball.v.CompareAndSwap(0, -1) // if it never arrived
		failed <- onCPU(b, func() {
			start := threadTime()
			defer func() { spent <- threadTime() - start }()
			if !rendezvous(&atB, &atA, &ball.v) {
				return
			}
			for next := int64(1); ; next += 2 {
				for ball.v.Load() != next {
					if ball.v.Load() < 0 {
						return
					}
				}
				// Not a plain store: the game may be over by now.
				if !ball.v.CompareAndSwap(next, next+1) {
					return
				}
			}
		})
	}()
	var rt RoundTrip
	bursts := make([]time.Duration, 0, 1<<14)
	go func() {
		defer ball.v.Store(-1)
		failed <- onCPU(a, func() {
			start := threadTime()
			defer func() { spent <- threadTime() - start }()
			if rendezvous(&atA, &atB, &ball.v) {
				bursts = serveBall(&ball.v, d, bursts)
			}
		})
	}()
	if err := errors.Join(<-failed, <-failed); err != nil {
		return RoundTrip{}, fmt.Errorf("ping-pong %d-%d: %w", a, b, err)
	}
	rt.CPU = <-spent + <-spent
	if rt.Bursts = len(bursts); rt.Bursts < leastBursts {
		return RoundTrip{}, fmt.Errorf("ping-pong %d-%d: %w", a, b, ErrNotParallel)
	}
	slices.Sort(bursts)
	rt.Min, rt.Median = bursts[0], bursts[len(bursts)/2]
	return rt, nil
}

// rendezvous marks this side as present and waits for the other. It sleeps in its own thread,
// which has a raised priority; a timer or a channel would not.
func rendezvous(me, other *atomic.Bool, ball *atomic.Int64) bool {
	me.Store(true)
	for begin := time.Now(); !other.Load(); {
		if ball.Load() < 0 || time.Since(begin) > arrival {
			return false
		}
		ts := unix.NsecToTimespec(int64(50 * time.Microsecond))
		_ = unix.Nanosleep(&ts, nil)
	}
	return true
}

// serveBall plays bursts for d, or up to patience longer until there are enough, and
// appends the mean round trip of each.
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
				// The other thread is not running: decide whether to wait for it.
				if waited := time.Since(begin); waited > d+patience || waited > d && len(bursts) >= leastBursts {
					return bursts
				}
			}
		}
		now := time.Now()
		bursts = append(bursts, now.Sub(last)/burstTrips)
		last = now
		if now.Sub(begin) > d && len(bursts) >= leastBursts {
			break
		}
	}
	return bursts
}

// onCPU runs f on a thread that is bound to one CPU and, where permitted (CAP_SYS_NICE),
// has a higher priority than nearly all other threads: otherwise the two threads would
// hardly run at once on busy CPUs.
func onCPU(cpu int, f func()) error {
	runtime.LockOSThread()
	back, err := bind(cpu)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	f()
	if err := back(); err != nil {
		// The thread stays locked, so it ends with its goroutine.
		return err
	}
	runtime.UnlockOSThread()
	return nil
}

// bind binds the calling thread and returns the function that undoes it.
func bind(cpu int) (back func() error, err error) {
	tid := unix.Gettid()
	// The raw call counts from 40 (nice -20) down to 1 (getpriority(2)).
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
	if err != nil {
		return nil, fmt.Errorf("get priority: %w", err)
	}
	old, err := host.Affinity(0)
	if err != nil {
		return nil, fmt.Errorf("get affinity: %w", err)
	}
	if err := host.SetAffinity(0, sample.SetOf(cpu)); err != nil {
		return nil, fmt.Errorf("bind to CPU %d: %w", cpu, err)
	}
	raised := unix.Setpriority(unix.PRIO_PROCESS, tid, -20) == nil
	return func() error {
		if raised {
			if err := unix.Setpriority(unix.PRIO_PROCESS, tid, 20-nice); err != nil {
				return fmt.Errorf("restore priority: %w", err)
			}
		}
		if err := host.SetAffinity(0, old); err != nil {
			return fmt.Errorf("unbind from CPU %d: %w", cpu, err)
		}
		return nil
	}, nil
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	// This cannot fail for the caller's own clock.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// MaxSharedTrip is the round trip below which two CPUs share a last-level cache. On a 2-vCPU AMD
// EPYC (Zen 3) guest, idle and busy, it was 70 to 150 ns with a shared cache, 355 to 480
// ns without, and no value in between.
const MaxSharedTrip = 220 * time.Nanosecond

// SharesCache reports whether the two CPUs of rt currently share a last-level cache. The
// others are pairs of the same machine. Where no pair is below MaxSharedTrip (a slow or emulated
// machine), rt counts as shared if it is at most 1.5 times the nearest pair and some
// other pair is at least twice the nearest. Without such a contrast the result is false.
func SharesCache(rt RoundTrip, others ...RoundTrip) bool {
	if rt.Min < MaxSharedTrip {
		return true
	}
	nearest, farthest := rt.Min, rt.Min
	for _, o := range others {
		nearest, farthest = min(nearest, o.Min), max(farthest, o.Min)
	}
	return nearest >= MaxSharedTrip && farthest >= 2*nearest && 2*rt.Min <= 3*nearest
}
