package agent

import (
	"testing"
	"time"
)

func TestTheClockNeverGoesBack(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := clock{base: start}
	for _, s := range []struct {
		wall, elapsed time.Duration // since start
		want, behind  time.Duration
	}{
		{1 * time.Second, 1 * time.Second, 1 * time.Second, 0},
		{2*time.Second - time.Millisecond, 2 * time.Second, 2 * time.Second, time.Millisecond},
		{-time.Hour, 3 * time.Second, 3 * time.Second, time.Hour + 3*time.Second},
		{-time.Hour + time.Second, 4 * time.Second, 4 * time.Second, time.Hour + 3*time.Second},
		{5 * time.Second, 5 * time.Second, 5 * time.Second, 0},
		{time.Hour, 6 * time.Second, time.Hour, 0}, // set forward: followed
	} {
		got, behind := c.at(start.Add(s.wall), s.elapsed)
		if got.Sub(start) != s.want || behind != s.behind {
			t.Errorf("wall +%s after %s: +%s, behind %s; want +%s, %s", s.wall, s.elapsed, got.Sub(start), behind, s.want, s.behind)
		}
	}
}
