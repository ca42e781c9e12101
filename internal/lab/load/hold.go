package load

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Options of a held load.
type Options struct {
	CPUs      float64       // the CPUs that a share refers to
	Period    time.Duration // 0: 107 ms
	Tolerance float64       // share by which the achieved load may differ from its target
}

// Level is a load for a time.
type Level struct {
	Share float64
	Until time.Time
}

// Period is the result of one period.
type Period struct {
	At           time.Time     // its end
	Target       float64       // share of the CPUs
	Used         time.Duration // CPU time in it
	Length       time.Duration
	Duty         float64
	Unattainable bool // so far, see Controller
}

// Hold runs a role at each of the levels in turn and calls each, if not nil, after
// every period. used reads the role's CPU time, which is exact while the role is
// stopped. However Hold ends, the role is continued.
func Hold(ctx context.Context, a Actuator, used func() (time.Duration, error), levels []Level, o Options, each func(Period)) (err error) {
	if o.Period == 0 {
		o.Period = 107 * time.Millisecond
	}
	// Sleeps on this thread are the kernel's own, exact to some 50 µs; the runtime's
	// timers may be a millisecond late.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { err = errors.Join(err, a.Continue()) }()
	law := NewController(o.CPUs, o.Period)
	begin := time.Now()
	last, err := used()
	if err != nil {
		return err
	}
	at := begin
	for _, level := range levels {
		law.Hold(at.Sub(begin), last, level.Share)
		for at.Before(level.Until) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			now := time.Now()
			duty := law.Duty(now.Sub(begin), last)
			if err := turn(a, duty, at, o.Period); err != nil {
				return err
			}
			// An absolute beat: a late period shortens the next one. Periods that were
			// missed as a whole are not made up for by shorter ones.
			at = at.Add(o.Period)
			if late := time.Since(at); late > o.Period {
				at = at.Add(late.Truncate(o.Period))
			}
			got, err := used()
			if err != nil {
				return err
			}
			if each != nil {
				each(Period{At: at, Target: level.Share, Used: got - last, Length: time.Since(now), Duty: duty, Unattainable: law.Unattainable(o.Tolerance)})
			}
			last = got
		}
	}
	return nil
}

// turn is one period: the role runs for its duty and is then stopped, so that its CPU
// time is exact at the end.
func turn(a Actuator, duty float64, at time.Time, period time.Duration) error {
	if duty > 0 {
		if err := a.Continue(); err != nil {
			return err
		}
		sleepUntil(at.Add(time.Duration(duty * float64(period))))
	}
	if duty < 1 {
		if err := a.Stop(); err != nil {
			return err
		}
	}
	sleepUntil(at.Add(period))
	return nil
}

// sleepUntil sleeps on the calling thread, by the kernel's absolute timer.
func sleepUntil(t time.Time) {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		ts := unix.NsecToTimespec(d.Nanoseconds())
		if err := unix.Nanosleep(&ts, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
