package server

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// specs holds the newest version of each spec and the result of the last computation.
type specs struct {
	// keeping is held while versions are stored and announced, one set at a time: else an
	// older message could follow a newer one.
	keeping     sync.Mutex
	unannounced map[jobPlatform]bool // changed and not announced yet; under keeping
	// learning is held by a computation: an operator may request one during another, and
	// only one may use the digests at a time.
	learning sync.Mutex

	mu      sync.Mutex
	by      map[spec.Key]store.Spec
	took    time.Duration
	at      sample.Millis
	failed  error
	changed int
}

// jobPlatform is a job on a platform: the unit of a message to agents.
type jobPlatform struct{ job, platform string }

// maxSpecs bounds the result of a computation.
const maxSpecs = 5_000_000

// loadSpecs reads the newest versions.
func (s *Server) loadSpecs(ctx context.Context) error {
	sn := s.Store.Snapshot(0, 0)
	defer sn.Close()
	a, err := s.askAll(ctx, sn, duck.Job{SQL: `SELECT job, platform, signal, variant, state, tasks, num_samples, cpu_usage_mean, cost_mean, cost_stddev,
  epoch_ms("last"), epoch_ms("at"), version, epoch_ms(since), cost_p50, cost_p90, cost_p99, by_usage FROM specs`})
	if err != nil {
		return err
	}
	all, err := dialect.SpecsOf(a.Rows, 0)
	if err != nil {
		return err
	}
	s.specs.mu.Lock()
	defer s.specs.mu.Unlock()
	s.specs.by = make(map[spec.Key]store.Spec, len(all))
	for i := range all {
		s.specs.by[dialect.KeyOf(&all[i])] = all[i]
	}
	return nil
}

// ownTime is the time limit of one of the server's own queries.
const ownTime = time.Hour

// askAll executes one of the server's own queries, within separate limits. Its answer must be complete.
func (s *Server) askAll(ctx context.Context, sn *store.Snapshot, job duck.Job) (*duck.Answer, error) {
	release, err := s.forSpecs.take(ctx, "")
	if err != nil {
		return nil, err
	}
	defer release()
	job.Limits = duck.Limits{Time: ownTime, MemoryMB: s.Config.Specs.MemoryMB, Threads: s.Config.Query.Threads, Rows: maxSpecs, Bytes: 4 << 30}
	if err := s.prepare(ctx, sn, &job); err != nil {
		return nil, err
	}
	a, err := s.Asker.Query(ctx, &job)
	if err == nil && a.Truncated {
		err = fmt.Errorf("the result has more than the allowed %d rows", len(a.Rows))
	}
	return a, err
}

// learn computes all specs, stores those that changed as new versions, and announces
// them.
func (s *Server) learn(ctx context.Context) error {
	s.specs.learning.Lock()
	defer s.specs.learning.Unlock()
	now := s.now()
	begun := time.Now()
	all, err := s.compute(ctx, now)
	s.specs.mu.Lock()
	s.specs.at, s.specs.took, s.specs.failed = now, time.Since(begun), err
	s.specs.mu.Unlock()
	if err != nil {
		return fmt.Errorf("compute specs: %w", err)
	}
	return s.keepSpecs(ctx, all)
}

// compute computes specs from everything stored, up to now.
func (s *Server) compute(ctx context.Context, now sample.Millis) ([]store.Spec, error) {
	p, from := s.Config.SpecParams(), now.Add(-s.Config.Specs.LookBack)
	sn := s.Store.Snapshot(from, now)
	defer sn.Close()
	windows, err := s.windows(ctx, sn, from, now)
	if err != nil {
		return nil, err
	}
	// The learner fetches the samples without a digest.
	learnt, err := s.Learner.Learn(ctx, sn, from, windows, p, now)
	if err != nil {
		return nil, err
	}
	s.live.do(func(by *spec.Live) { by.Rebase(now, learnt) })
	return rowsOfSpecs(learnt), nil
}

// windowsSQL selects the times when costs were not normal: for each victim from the first
// bad interval of an incident to its end, or as far as it is known to last. A lasting
// change is not excluded.
const windowsSQL = `SELECT machine, victim_task, signal, epoch_ms(began), epoch_ms(coalesce(closed, updated)), id, closed IS NULL
FROM incidents WHERE NOT follows`

func (s *Server) windows(ctx context.Context, sn *store.Snapshot, from, now sample.Millis) ([]store.Window, error) {
	a, err := s.askAll(ctx, sn, duck.Job{SQL: windowsSQL, From: from, To: now})
	if err != nil {
		return nil, fmt.Errorf("read incidents: %w", err)
	}
	all := make([]store.Window, 0, len(a.Rows))
	for _, row := range a.Rows {
		var w store.Window
		var id string
		var open bool
		into := []any{&w.Machine, &w.Task, &w.Signal, &w.From, &w.To, &id, &open}
		if err := json.Unmarshal(row, &into); err != nil {
			return nil, fmt.Errorf("read incidents: %w", err)
		}
		all = append(all, w)
		ended := w.To
		if open {
			ended = 0
		}
		s.live.do(func(by *spec.Live) { by.Incident(w.Machine, id, w.Task, w.Signal, w.From, ended, false) })
	}
	return all, nil
}

// rowsOfSpecs converts specs for the store.
func rowsOfSpecs(learnt []spec.Computed) []store.Spec {
	all := make([]store.Spec, len(learnt))
	for i := range learnt {
		l := &learnt[i]
		all[i] = store.Spec{At: int64(l.Updated), Job: string(l.Job), Platform: string(l.Platform), Signal: string(l.Signal), Variant: l.Variant,
			State: l.State.String(), Tasks: int64(l.Tasks), Samples: l.Samples, CPUMean: l.CPUMean, Mean: l.Mean, StdDev: l.StdDev, Last: int64(l.Last),
			Since: int64(l.Since), P50: l.P50, P90: l.P90, P99: l.P99}
		if text, err := json.Marshal(l.Usage); err == nil && len(l.Usage) > 0 { // finite numbers: it cannot fail
			all[i].Usage = string(text)
		}
	}
	return all
}

// keepSpecs stores changed specs as versions and announces them. A key without samples in
// the period of the computation keeps its newest version. Failed announcements are
// retried each time.
func (s *Server) keepSpecs(ctx context.Context, all []store.Spec) error {
	s.specs.keeping.Lock()
	defer s.specs.keeping.Unlock()
	if fresh := s.specs.renew(all); len(fresh) > 0 {
		s.Store.Add(&store.Batch{Specs: fresh})
		if err := s.Store.Flush(); err != nil {
			return fmt.Errorf("store specs: %w", err)
		}
		s.hub.publish("specs", map[string]any{"at": fresh[0].At, "changed": len(fresh)})
	}
	if s.Publisher == nil {
		return nil
	}
	for _, m := range s.specs.messages() {
		if err := s.Publisher.PutSpecs(ctx, m); err != nil {
			return fmt.Errorf("announce specs: %w", err)
		}
		delete(s.specs.unannounced, jobPlatform{m.Job, m.Platform})
	}
	return nil
}

// renew assigns the next version to changed specs and returns them.
func (s *specs) renew(all []store.Spec) (fresh []store.Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unannounced == nil {
		s.unannounced = map[jobPlatform]bool{}
	}
	for i := range all {
		n := &all[i]
		old, known := s.by[dialect.KeyOf(n)]
		same := old
		same.At, same.Version = n.At, n.Version
		if known && same == *n {
			continue
		}
		n.Version = old.Version + 1
		s.by[dialect.KeyOf(n)] = *n
		fresh = append(fresh, *n)
		s.unannounced[jobPlatform{n.Job, n.Platform}] = true
	}
	s.changed = len(fresh)
	return fresh
}

// messages returns the messages that still have to be announced.
func (s *specs) messages() (all []*wire.Specs) {
	if len(s.unannounced) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[jobPlatform][]spec.Spec{}
	revision := map[jobPlatform]uint64{}
	for _, v := range s.by {
		if p := (jobPlatform{v.Job, v.Platform}); s.unannounced[p] {
			by[p] = append(by[p], dialect.SpecOf(&v))
			revision[p] += uint64(v.Version) // each change increases the sum
		}
	}
	for p, of := range by {
		all = append(all, wire.SpecsOf(sample.JobName(p.job), sample.Platform(p.platform), revision[p], of))
	}
	return all
}
