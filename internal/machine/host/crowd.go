package host

import (
	"errors"
	"maps"
	"sync"
	"time"
)

// ErrCrowded means that a task has more cgroups than are read.
var ErrCrowded = errors.New("it has more cgroups than are read")

// Of a task with more cgroups, mostBelow are listed, and mostRead have their processes read, which
// takes several times as long: all of 100,000 would take the agent's loop seconds, which
// other tasks need. Such a task is not walked again for crowdedPause: while it makes and removes
// cgroups, the kernel's locks make each step of a walk wait, many times as long as the step takes.
const (
	mostBelow    = 4 << 10
	mostRead     = 2 << 10
	crowdedPause = time.Minute
)

// crowds are the cgroups that had more than most below them when they were walked last.
type crowds struct {
	mu  sync.Mutex
	all map[crowdKey]*crowd
	now func() time.Time // of a test; nil: time.Now
}

type crowdKey struct {
	mount string
	inode uint64
	most  int
}

// crowd is one of them.
type crowd struct {
	until time.Time // when it may be walked again
	ids   []uint64  // what the walk listed, if it was one for that
}

func (c *crowds) clock() time.Time {
	if c.now != nil {
		return c.now()
	}
	return time.Now()
}

func (c *crowds) has(k crowdKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.all[k]
	return at != nil && c.clock().Before(at.until)
}

func (c *crowds) add(k crowdKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	maps.DeleteFunc(c.all, func(_ crowdKey, at *crowd) bool { return !now.Before(at.until) })
	if c.all == nil {
		c.all = map[crowdKey]*crowd{}
	}
	c.all[k] = &crowd{until: now.Add(crowdedPause)}
}

// keep keeps what was listed before the cgroup was found crowded.
func (c *crowds) keep(k crowdKey, ids []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.all[k]; at != nil {
		at.ids = ids
	}
}

// listed returns what keep was given.
func (c *crowds) listed(k crowdKey) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.all[k]; at != nil {
		return at.ids
	}
	return nil
}
