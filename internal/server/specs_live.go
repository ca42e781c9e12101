package server

import (
	"context"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
	"github.com/quell-dev/quell/internal/store"
	"github.com/quell-dev/quell/internal/store/digest"
)

// Learner makes specs of a store's samples, without those taken in windows
// (digest.Learner). Where there is none DuckDB does it by SQL.
type Learner interface {
	Learn(ctx context.Context, sn *store.Snapshot, windows []digest.Window, p spec.Params, now sample.Millis) ([]spec.Learnt, digest.Stats, error)
}

// Engine makes specs of a store's samples from from to now elsewhere, by the SQL
// of package dialect (spark.Engine).
type Engine interface {
	Specs(ctx context.Context, sn *store.Snapshot, from sample.Millis, p spec.Params, now sample.Millis) ([]store.Spec, error)
}

// maxHeld is how many samples the live specs hold back at most: some 30 MB. More
// come than that only if the cluster has more than 100,000 tasks; the next
// computation has those.
const maxHeld = 1_000_000

// live goes on learning between two computations; nil where nothing does.
type live struct {
	mu sync.Mutex
	by *spec.Live
}

// newLive is nil if there is no learner to begin with, or none is wanted.
func newLive(p Parts) *live {
	if p.Learner == nil || p.Engine != nil || p.Config.Specs.Between == 0 {
		return nil
	}
	return &live{by: spec.NewLive(p.Config.SpecParams(), spec.LiveHold, maxHeld)}
}

func (l *live) rebase(cut sample.Millis, all []spec.Learnt) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by.Rebase(cut, all)
}

// add takes in what a batch says.
func (l *live) add(b *store.Batch) {
	if l == nil || len(b.Samples)+len(b.Incidents) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range b.Samples {
		l.by.Add(&b.Samples[i])
	}
	for i := range b.Incidents {
		inc := &b.Incidents[i]
		ended := sample.Millis(0)
		if inc.Closed != nil {
			ended = sample.Millis(*inc.Closed)
		}
		l.by.Incident(inc.Machine, inc.ID, sample.TaskName(inc.VictimTask), sample.SignalName(inc.Signal), sample.Millis(inc.Began), ended, inc.Follows)
	}
}

// incident tells of one that is stored; an open one has no end yet.
func (l *live) incident(machine, id string, task sample.TaskName, signal sample.SignalName, began, ended sample.Millis, open, follows bool) {
	if l == nil {
		return
	}
	if open {
		ended = 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by.Incident(machine, id, task, signal, began, ended, follows)
}

// follow keeps and makes known what the samples since the last computation have
// changed.
func (s *Server) follow(ctx context.Context) error {
	now := s.now()
	s.live.mu.Lock()
	s.live.by.Advance(now)
	changed := rowsOfSpecs(s.live.by.Changed(now))
	s.live.mu.Unlock()
	return s.keepSpecs(ctx, changed)
}

// following is how often follow is called; 0: never.
func (s *Server) following() time.Duration {
	if s.live == nil {
		return 0
	}
	return s.Config.Specs.Between
}
