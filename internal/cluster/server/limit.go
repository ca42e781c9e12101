package server

import (
	"sync"
	"time"
)

// callers limits the request rate of each caller by a token bucket.
type callers struct {
	perSecond, burst float64
	now              func() time.Time

	mu sync.Mutex
	by map[string]*bucket
}

type bucket struct {
	left float64
	at   time.Time
}

// maxCallers bounds how many are remembered; those with a full bucket can be removed.
const maxCallers = 10_000

func newCallers(perSecond float64, burst int, now func() time.Time) *callers {
	return &callers{perSecond: perSecond, burst: float64(burst), now: now, by: map[string]*bucket{}}
}

// allow reports whether a caller may send a request now. Callers with a known token are
// few and are always accepted into the table.
func (c *callers) allow(who string, known bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	b := c.by[who]
	if b == nil {
		if len(c.by) >= maxCallers && !known {
			for k, old := range c.by {
				if old.left+now.Sub(old.at).Seconds()*c.perSecond >= c.burst {
					delete(c.by, k)
				}
			}
			if len(c.by) >= maxCallers {
				return false
			}
		}
		b = &bucket{left: c.burst, at: now}
		c.by[who] = b
	}
	b.left = min(c.burst, b.left+max(0, now.Sub(b.at).Seconds())*c.perSecond)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
