package agent

import (
	"fmt"
	"time"
)

// clock is the wall clock, except that it never goes back: samples, leases and pauses
// between analyses stay in time order even if the machine's clock is set back. A clock
// that is set forward is followed.
type clock struct {
	base   time.Time // with a monotonic reading; the zero value takes the first
	health *health
}

// most is the largest slew or step of the wall clock that is ignored.
const most = time.Second

// now is the agent's time.
func (c *clock) now() time.Time {
	wall := time.Now()
	t, behind := c.at(wall, wall.Sub(c.base))
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
