package enforce

import (
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Pauses between the attempts of an undo that fails. The first is the agent's
// default tick; the longest is how long a cap may outlast its obstacle.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// FailedUndo is a change whose undo failed. It is retried as long as its cgroup exists.
type FailedUndo struct {
	Change Change
	Tries  int
	Since  sample.Millis // the first failure
	Next   sample.Millis // no attempt before that
	Err    error         // of the last attempt
}

// Stuck returns the changes whose undo failed, in the order they were made.
func (e *Enforcer) Stuck() []FailedUndo {
	var all []FailedUndo
	for i := range e.open {
		if s := &e.open[i].stuck; s.tries > 0 {
			all = append(all, FailedUndo{e.open[i].Change, s.tries, s.since, s.next, s.err})
		}
	}
	return all
}

// retryState holds an entry's failures; the zero value is none.
type retryState struct {
	tries             int
	since, last, next sample.Millis
	err               error
}

func (s *retryState) failed(now sample.Millis, err error) {
	if s.tries == 0 {
		s.since = now
	}
	pause := longestPause
	if s.tries < 5 {
		pause = min(firstPause<<s.tries, longestPause)
	}
	s.tries++
	s.last, s.next, s.err = now, now.Add(pause), err
}

// ready reports whether the pause is over. A clock that was set back ends it.
func (s *retryState) ready(now sample.Millis) bool { return now >= s.next || now < s.last }
