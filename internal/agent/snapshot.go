package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// longestSleep is how long the loop sleeps at most. Changes that are not reported are
// noticed this late, such as the first process of a v1 cgroup, or a due save of the specs.
const longestSleep = 10 * time.Second

// snapshot is the text of /metrics as of the loop's last iteration: a scrape does not
// wait for the loop, nor the loop for a scrape. Metrics that only a window changes are
// written when one ends, the others, some 40 series, after each iteration.
type snapshot struct {
	ofTick, ofWindow []metric
	tick, window     exposition // used by the loop only

	mu   sync.Mutex
	text []byte
	at   time.Time
}

// staleAfter is how long the loop may be stalled before /metrics fails instead of
// repeating old values. The loop sleeps longestSleep at most.
const staleAfter = 6 * longestSleep

var errNoTurn = errors.New("the agent's loop has not run yet")

func newSnapshot() *snapshot {
	return &snapshot{ofTick: append(tickMetrics(), uplinkMetrics()...), ofWindow: windowMetrics()}
}

func (s *snapshot) takeWindow(v *view) {
	s.window.reset()
	for i := range s.ofWindow {
		s.window.collect(v, &s.ofWindow[i])
	}
}

func (s *snapshot) take(v *view, now time.Time) {
	s.tick.reset()
	for i := range s.ofTick {
		s.tick.collect(v, &s.ofTick[i])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(append(s.text[:0], s.tick.text...), s.window.text...)
	s.at = now
}

// read appends the snapshot to a scrape's buffer.
func (s *snapshot) read(to []byte, now time.Time) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch age := now.Sub(s.at); {
	case s.at.IsZero():
		return to, errNoTurn
	case age > staleAfter:
		return to, fmt.Errorf("the agent's loop has not run for %s", age.Round(time.Second))
	}
	return append(to, s.text...), nil
}
