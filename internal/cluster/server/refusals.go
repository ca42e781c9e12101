package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
)

// Refusal is an operation that was refused to a client.
type Refusal struct {
	Client    string // name of the token or credentials; empty if unknown
	From      string // address
	Scope     string // of the token, or the credentials' role
	Operation string // method and path, or the operation of a bus client
	Target    string // the object of the operation
	Reason    string
}

// refusals puts refusals into the audit log without letting a client fill it: the first
// of a kind is recorded at once, and repetitions within the next minute as one line with
// their number.
type refusals struct {
	mu     sync.Mutex
	since  map[Refusal]uint64 // how many more of each kind came in this minute
	others uint64             // of kinds beyond maxKinds
}

// maxKinds bounds how many kinds per minute are distinguished.
const maxKinds = 500

// first counts a refusal and reports whether it must be recorded now.
func (r *refusals) first(x Refusal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, known := r.since[x]; known {
		r.since[x] = n + 1
		return false
	}
	if len(r.since) >= maxKinds {
		r.others++
		return false
	}
	if r.since == nil {
		r.since = map[Refusal]uint64{}
	}
	r.since[x] = 0
	return true
}

// rest returns the number of repetitions of each kind, and resets the counts.
func (r *refusals) rest() (again map[Refusal]uint64, others uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again, others = r.since, r.others
	r.since, r.others = nil, 0
	return again, others
}

// Refused records a refusal in the audit log. It is on disk soon after (keepNotes).
func (s *Server) Refused(x Refusal) {
	s.metrics.refused.Inc()
	if s.refusals.first(x) {
		s.note(x, "refused: "+x.Reason)
	}
}

func (s *Server) note(x Refusal, outcome string) {
	s.Store.Add(&store.Batch{Audit: []store.Audit{{At: int64(s.now()), Who: x.Client, From: x.From, Scope: x.Scope, What: x.Operation, Target: x.Target, Outcome: outcome}}})
	s.noted.Store(true)
	s.Log.Info("audit", "who", x.Client, "from", x.From, "what", x.Operation, "target", x.Target, "outcome", outcome)
}

// keepNotes commits recorded refusals if no messages cause a commit.
func (s *Server) keepNotes(context.Context) error {
	if !s.noted.Swap(false) {
		return nil
	}
	err := s.Store.Flush()
	if err != nil {
		s.noted.Store(true)
	}
	return err
}

// refusedAgain is how often repetitions are recorded.
const refusedAgain = time.Minute

// noteAgain records the repetitions.
func (s *Server) noteAgain(context.Context) error {
	again, others := s.refusals.rest()
	for x, n := range again {
		if n > 0 {
			s.note(x, fmt.Sprintf("refused %d times more: %s", n, x.Reason))
		}
	}
	if others > 0 {
		s.note(Refusal{Operation: "anything"}, fmt.Sprintf("refused %d times more, of further kinds", others))
	}
	return nil
}
