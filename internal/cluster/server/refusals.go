package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/quell-dev/quell/internal/cluster/store"
)

// refusals puts refusals into the audit log without letting a client fill it: the first
// of a kind is recorded at once, and repetitions within the next minute as one line with
// their number.
type refusals struct {
	mu     sync.Mutex
	since  map[store.Audit]uint64 // how many more of each kind came in this minute
	of     map[[2]string]int      // kinds in it of each client
	others uint64                 // of further kinds
}

// maxKinds bounds how many kinds per minute are distinguished, and mostKinds those of one client.
const maxKinds, mostKinds = 500, 50

// first counts a refusal and reports whether it must be recorded now.
func (r *refusals) first(x store.Audit) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, known := r.since[x]; known {
		r.since[x] = n + 1
		return false
	}
	client := [2]string{x.Who, network(x.From)}
	if len(r.since) >= maxKinds || r.of[client] >= mostKinds {
		r.others++
		return false
	}
	if r.since == nil {
		r.since, r.of = map[store.Audit]uint64{}, map[[2]string]int{}
	}
	r.since[x] = 0
	r.of[client]++
	return true
}

// rest returns the number of repetitions of each kind, and resets the counts.
func (r *refusals) rest() (again map[store.Audit]uint64, others uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again, others = r.since, r.others
	r.since, r.of, r.others = nil, nil, 0
	return again, others
}

// Refused records an operation that was refused to a client in the audit log; its Outcome
// is the reason. It is on disk soon after (keepNotes).
func (s *Server) Refused(x store.Audit) {
	s.metrics.refused.Inc()
	if s.refusals.first(x) {
		s.note(x, "refused: "+x.Outcome)
	}
}

// Acted records what the server did by itself in the audit log. It is on disk soon after.
func (s *Server) Acted(x store.Audit) { s.note(x, x.Outcome) }

func (s *Server) note(x store.Audit, outcome string) {
	x.Outcome = outcome
	s.record(x)
	s.noted.Store(true)
}

// record adds an entry to the audit log, which is committed with the next batch.
func (s *Server) record(a store.Audit) {
	a.At = int64(s.now())
	s.Store.Add(&store.Batch{Audit: []store.Audit{a}})
	log := s.Log.With("who", a.Who, "from", a.From, "what", a.What, "target", a.Target)
	if a.Why != "" {
		log = log.With("why", a.Why)
	}
	log.Info("audit", "outcome", a.Outcome)
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

// noteAgain records the repetitions, once a minute.
func (s *Server) noteAgain(context.Context) error {
	again, others := s.refusals.rest()
	for x, n := range again {
		if n > 0 {
			s.note(x, fmt.Sprintf("refused %d times more: %s", n, x.Outcome))
		}
	}
	if others > 0 {
		s.note(store.Audit{What: "anything"}, fmt.Sprintf("refused %d times more, of further kinds", others))
	}
	return nil
}
