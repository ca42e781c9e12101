package workload

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/role"
)

// Run plays s in this process. It waits for a line on standard input, so that its parent
// can place it first, and works until standard input closes or ctx ends. Both are a
// normal end, so it never outlives its parent. Victims count their transactions in the
// file $QUELL_PROGRESS.
//
// One goroutine does the work. It allocates nothing once it has begun and avoids the Go
// scheduler. With GOMAXPROCS=1 in the environment the process is effectively
// single-threaded.
func Run(ctx context.Context, s Spec) error {
	return run(ctx, s, os.Stdin, os.Getenv(ProgressEnv), nil)
}

// run calls served, if not nil, with the latency of each request of a serve, which begins
// when the request is due.
func run(ctx context.Context, s Spec, in io.Reader, path string, served func(latency time.Duration)) error {
	if err := s.Validate(); err != nil {
		return err
	}
	ctx, cancel, ok := role.Barrier(ctx, in)
	defer cancel()
	if !ok {
		return nil
	}
	w := &worker{spec: s, ctx: ctx, served: served}
	context.AfterFunc(ctx, func() { w.stop.Store(true) })

	shortenSlices()
	var err error
	if w.progress, err = openProgress(path); err != nil {
		return err
	}
	defer w.progress.Close()
	switch s.Kind {
	case Serve:
		return w.serve()
	case Chase:
		return w.chase()
	case Hog:
		return w.batch(burn)
	case Stream:
		return w.stream()
	case Syscall:
		zero, err := os.Open("/dev/zero")
		if err != nil {
			return fmt.Errorf("run syscall: %w", err)
		}
		defer zero.Close()
		w.zero = int(zero.Fd())
		return w.innocent(w.call)
	default:
		return w.innocent(burn)
	}
}

// worker is the state of one running workload.
type worker struct {
	spec     Spec
	ctx      context.Context
	stop     atomic.Bool // ctx is done; cheaper to read than ctx
	served   func(latency time.Duration)
	progress *progress
	zero     int // /dev/zero (syscall)
	block    [512]byte
}

// xorshift is n steps of compute in registers. It is not inlined, so that the call is not
// dropped even if its result is not used.
//
//go:noinline
func xorshift(x uint64, n int) uint64 {
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// burn computes for some tens of microseconds: short compared with every length in a
// practical Spec, long compared with reading a clock.
func burn() {
	//lint:ignore SA4017 the time it takes is what is wanted
	xorshift(seed, 20_000)
}

// seed is any number except 0, which mix would not change.
const seed = 88172645463325252

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var ts unix.Timespec
	raw(unix.SYS_CLOCK_GETTIME, unix.CLOCK_PROCESS_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0, 0)
	return time.Duration(ts.Nano())
}

// calibrate returns how many steps of mix take d of CPU time. It uses the fastest of
// several runs, because any other load only makes a run slower.
func calibrate(d time.Duration) int {
	const steps = 200_000
	best := time.Duration(1 << 62)
	for range 25 {
		start := cpuTime()
		//lint:ignore SA4017 the time it takes is what is wanted
		xorshift(seed, steps)
		best = min(best, cpuTime()-start)
	}
	return max(int(float64(steps)*float64(d)/float64(max(best, 1))), 1)
}

// serve answers requests in a closed loop: compute, count, pause.
func (w *worker) serve() error {
	steps := calibrate(w.spec.Work)
	due := time.Now()
	for !w.stop.Load() {
		//lint:ignore SA4017 the time it takes is what is wanted
		xorshift(seed, steps)
		end := time.Now()
		if w.served != nil {
			w.served(end.Sub(due))
		}
		if err := w.progress.add(1); err != nil {
			return err
		}
		w.sleep(w.spec.Pause)
		due = end.Add(w.spec.Pause)
	}
	return nil
}

// batch runs intermittently: bursts of Work CPU time, made of calls of chunk. If a burst
// gets less CPU it lasts longer; it does not do less.
func (w *worker) batch(chunk func()) error {
	var cycle int64
	if w.spec.Period > 0 {
		cycle, _ = w.spec.cycle(time.Now())
	}
	for k := uint64(0); !w.stop.Load(); k++ {
		if w.spec.Period > 0 {
			cycle = w.await(cycle + 1)
		}
		end := cpuTime() + vary(w.spec.Work, w.spec.Vary, w.spec.Seed, 2*k)
		for cpuTime() < end && !w.stop.Load() {
			chunk()
		}
		if w.spec.Period == 0 {
			w.sleep(vary(w.spec.Pause, w.spec.Vary, w.spec.Seed, 2*k+1))
		}
	}
	return nil
}

// await sleeps until cycle k begins and returns the current cycle, which is a later one
// if k has already passed.
func (w *worker) await(k int64) int64 {
	now := time.Now()
	at, into := w.spec.cycle(now)
	if at >= k {
		return at
	}
	w.sleep(time.Duration(k-at)*w.spec.Period - into)
	return k
}

// innocent calls chunk during the loud phases of its schedule.
func (w *worker) innocent(chunk func()) error {
	for !w.stop.Load() {
		now := time.Now()
		on, until := w.spec.busy(now)
		if !on {
			w.sleep(until.Sub(now))
			continue
		}
		for time.Now().Before(until) && !w.stop.Load() {
			chunk()
		}
	}
	return nil
}
