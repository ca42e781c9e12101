package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/store"
)

// Refusal is something that somebody wanted and was not let do.
type Refusal struct {
	Who   string // whose token or credentials; empty without any that are known
	From  string // address
	Scope string // of the token, or the credentials' role
	What  string // method and path, or what a client of the bus wanted
	Of    string // what it was about
	Why   string
}

// refusals are in the audit log without giving whoever is refused a way to fill
// it: the first of a kind is written down at once, and those like it within the
// next minute as one line that says how many there were.
type refusals struct {
	mu     sync.Mutex
	since  map[Refusal]uint64 // how many more of a kind came in this minute
	others uint64             // of kinds that there was no room for
}

// maxKinds bounds how many kinds of a minute are told apart.
const maxKinds = 500

// first counts a refusal and reports whether it is to be written down now.
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

// rest returns how many of which came again, and begins anew.
func (r *refusals) rest() (again map[Refusal]uint64, others uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again, others = r.since, r.others
	r.since, r.others = nil, 0
	return again, others
}

// Refused writes down in the audit log that somebody was refused something. It
// is on disk soon after (keepNotes).
func (s *Server) Refused(x Refusal) {
	s.metrics.refused.Inc()
	if s.refusals.first(x) {
		s.note(x, "refused: "+x.Why)
	}
}

func (s *Server) note(x Refusal, outcome string) {
	s.Store.Add(&store.Batch{Audit: []store.Audit{{At: int64(s.now()), Who: x.Who, From: x.From, Scope: x.Scope, What: x.What, Target: x.Of, Outcome: outcome}}})
	s.noted.Store(true)
	s.Log.Info("audit", "who", x.Who, "from", x.From, "what", x.What, "target", x.Of, "outcome", outcome)
}

// keepNotes commits what was noted, where no messages come that would be committed.
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

// refusedAgain is how often those that came again are written down.
const refusedAgain = time.Minute

// noteAgain writes them down.
func (s *Server) noteAgain(context.Context) error {
	again, others := s.refusals.rest()
	for x, n := range again {
		if n > 0 {
			s.note(x, fmt.Sprintf("refused %d times more: %s", n, x.Why))
		}
	}
	if others > 0 {
		s.note(Refusal{What: "anything"}, fmt.Sprintf("refused %d times more, of so many kinds that they are not told apart", others))
	}
	return nil
}
