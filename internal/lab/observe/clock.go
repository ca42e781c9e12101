package observe

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/result"
)

// mostSlew is how far CLOCK_REALTIME may drift from CLOCK_MONOTONIC between two readings
// before it counts as a step. Both follow the same slewing (adjtimex(2)), so the rest is
// the error of reading both at the same time.
const mostSlew = 5 * time.Millisecond

// clock is one reading of the kernel's clocks.
type clock struct {
	offset  time.Duration // CLOCK_REALTIME − CLOCK_MONOTONIC
	suspend time.Duration // CLOCK_BOOTTIME − CLOCK_MONOTONIC: how long the machine slept
}

// readClock reads the clocks as close to the same instant as this process can.
func readClock() (clock, error) {
	var best clock
	var narrowest time.Duration
	for i := range 5 {
		var at [4]time.Duration
		for k, id := range [...]int32{unix.CLOCK_MONOTONIC, unix.CLOCK_REALTIME, unix.CLOCK_BOOTTIME, unix.CLOCK_MONOTONIC} {
			var ts unix.Timespec
			if err := unix.ClockGettime(id, &ts); err != nil {
				return clock{}, fmt.Errorf("read clocks: %w", err)
			}
			at[k] = time.Duration(ts.Nano())
		}
		width := at[3] - at[0]
		if i > 0 && width >= narrowest {
			continue
		}
		middle := at[0] + width/2
		best, narrowest = clock{offset: at[1] - middle, suspend: at[2] - middle}, width
	}
	return best, nil
}

// since is the change since an earlier reading.
func (c clock) since(before clock) clock {
	return clock{offset: c.offset - before.offset, suspend: c.suspend - before.suspend}
}

// judge returns evidence if the change is a step or a suspend.
func (c clock) judge() *result.Evidence {
	bound := mostSlew.Seconds()
	switch {
	case c.suspend > mostSlew:
		return &result.Evidence{Reason: result.ClockStep, Value: c.suspend.Seconds(), Bound: bound, Unit: "s", Text: fmt.Sprintf("the machine was suspended for %s", c.suspend.Round(time.Millisecond))}
	case c.offset.Abs() > mostSlew:
		return &result.Evidence{Reason: result.ClockStep, Value: c.offset.Seconds(), Bound: bound, Unit: "s", Text: fmt.Sprintf("the system clock was stepped by %s", c.offset.Round(time.Microsecond))}
	}
	return nil
}
