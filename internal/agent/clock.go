package agent

import (
	"fmt"
	"time"
)

// clock is the wall clock, except that it never goes back: samples, leases and pauses
// between analyses stay in time order even if the machine's clock is set back. A clock
// that is set forward is followed.
type clock struct {
	base   time.Time // the zero value takes the first reading
	since  time.Time // when base was read, with a monotonic reading
	health *health
	wall   func() time.Time // of a test, whose wall clock jumps; nil: time.Now
}

// most is the largest slew or step of the wall clock that is ignored.
const most = time.Second

// now is the agent's time.
func (c *clock) now() time.Time {
	read := time.Now()
	wall := read
	if c.wall != nil {
		wall = c.wall()
	}
	before := c.base
	t, behind := c.at(wall, read.Sub(c.since))
	if c.base != before {
		c.since = read
	}
	var err error
	if behind > most {
		err = fmt.Errorf("the wall clock was set back by %s; the agent continues with its own time until the wall clock has caught up or the agent is restarted", behind.Round(time.Second))
	}
	c.health.degrade("clock", err)
	return t
}

// at is the time for a given wall clock reading and the monotonic time since base, and how
// far the wall clock is behind it.
func (c *clock) at(wall time.Time, elapsed time.Duration) (t time.Time, behind time.Duration) {
	t = c.base.Add(elapsed)
	behind = t.Round(0).Sub(wall.Round(0))
	if c.base.IsZero() || behind < -most {
		c.base = wall
		return wall, 0
	}
	return t, max(behind, 0)
}
