package server

import (
	"context"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Learner computes specs of a store's samples between from and now, except those in
// windows (digest.Learner, spark.Learner).
type Learner interface {
	Learn(ctx context.Context, sn *store.Snapshot, from sample.Millis, windows []store.Window, p spec.Params, now sample.Millis) ([]spec.Computed, error)
}

// maxHeld is the maximum number of samples that the live specs hold back: some 30 MB.
// Only a cluster of more than 100,000 tasks exceeds it; the next computation includes the
// excess.
const maxHeld = 1_000_000

// live continues learning between two computations; nil: disabled.
type live struct {
	mu sync.Mutex
	by *spec.Live
}

// newLive returns nil if live specs are disabled, or if another system computes specs: its
// result is not a state that learning can continue from.
func newLive(p Options) *live {
	if p.Config.Specs.Engine != "" || p.Config.Specs.Between == 0 {
		return nil
	}
	return &live{by: spec.NewLive(p.Config.SpecParams(), spec.LiveHold, maxHeld)}
}

// do calls f, one call at a time; not at all if live specs are disabled.
func (l *live) do(f func(*spec.Live)) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.by)
}

// add adds the contents of a batch.
func (l *live) add(b *store.Batch) {
	if len(b.Samples)+len(b.Incidents) == 0 {
		return
	}
	l.do(func(by *spec.Live) {
		by.AddAll(b.Source.Machine, b.Shape, b.Samples)
		for i := range b.Incidents {
			inc := &b.Incidents[i]
			ended := sample.Millis(0)
			if inc.Closed != nil {
				ended = sample.Millis(*inc.Closed)
			}
			by.Incident(inc.Machine, inc.ID, sample.TaskName(inc.VictimTask), sample.SignalName(inc.Signal), sample.Millis(inc.Began), ended, inc.Follows)
		}
	})
}

// announceLive stores and announces the changes caused by samples since the last computation.
func (s *Server) announceLive(ctx context.Context) error {
	now := s.now()
	var changed []store.Spec
	s.live.do(func(by *spec.Live) {
		by.Advance(now)
		changed = s.rowsOfSpecs(by.Changed(now))
	})
	return s.keepSpecs(ctx, changed)
}

// following is the period of follow; 0: never.
func (s *Server) following() time.Duration {
	if s.live == nil {
		return 0
	}
	return s.Config.Specs.Between
}
