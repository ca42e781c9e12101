package server

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// callers limits the request rate of each caller.
type callers struct {
	perSecond rate.Limit
	burst     int
	now       func() time.Time

	mu sync.Mutex
	by map[string]*rate.Limiter
}

// maxCallers bounds how many are remembered; those that may send a whole burst can be
// removed.
const maxCallers = 10_000

func newCallers(perSecond float64, burst int, now func() time.Time) *callers {
	return &callers{perSecond: rate.Limit(perSecond), burst: burst, now: now, by: map[string]*rate.Limiter{}}
}

// allow reports whether a caller may send a request now. Callers with a known token are
// few and are always accepted into the table.
func (c *callers) allow(who string, known bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	l := c.by[who]
	if l == nil {
		if len(c.by) >= maxCallers && !known {
			maps.DeleteFunc(c.by, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= float64(c.burst) })
			if len(c.by) >= maxCallers {
				return false
			}
		}
		l = rate.NewLimiter(c.perSecond, c.burst)
		c.by[who] = l
	}
	return l.AllowN(now, 1)
}
