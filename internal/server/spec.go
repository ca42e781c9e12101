package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
	"github.com/quell-dev/quell/internal/store"
	"github.com/quell-dev/quell/internal/store/duck"
	"github.com/quell-dev/quell/internal/wire"
)

// specs is the newest version of each, and how the newest computation went.
type specs struct {
	mu      sync.Mutex
	by      map[spec.Key]store.Spec
	took    time.Duration
	at      sample.Millis
	failed  error
	changed int
}

func keyOf(s *store.Spec) spec.Key {
	return spec.Key{Job: sample.JobName(s.Job), Platform: sample.Platform(s.Platform), Signal: sample.SignalName(s.Signal), Variant: s.Variant}
}

// maxSpecs bounds what one computation may give.
const maxSpecs = 5_000_000

// loadSpecs reads the newest versions.
func (s *Server) loadSpecs(ctx context.Context) error {
	job, sn := s.job(`SELECT job, platform, signal, variant, state, tasks, num_samples, cpu_usage_mean, cost_mean, cost_stddev,
  epoch_ms("last"), epoch_ms("at"), version FROM specs`, 0, 0)
	defer sn.Close()
	job.Limits.Rows, job.Limits.Bytes, job.Limits.MemoryMB = maxSpecs, 4<<30, s.Config.Specs.MemoryMB
	a, err := s.Asker.Query(ctx, job)
	if err != nil {
		return err
	}
	all, err := duck.SpecsOf(a, 0)
	if err != nil {
		return err
	}
	s.specs.mu.Lock()
	defer s.specs.mu.Unlock()
	s.specs.by = make(map[spec.Key]store.Spec, len(all))
	for i := range all {
		s.specs.by[keyOf(&all[i])] = all[i]
	}
	return nil
}

// learn computes all specs anew, keeps those that changed as new versions, and
// makes them known.
func (s *Server) learn(ctx context.Context) error {
	now := s.now()
	begun := time.Now()
	job, sn := s.job(duck.SpecSQL(s.Config.SpecParams(), now), now.Add(-s.Config.Specs.LookBack), now)
	defer sn.Close()
	job.Limits = duck.Limits{Time: time.Hour, MemoryMB: s.Config.Specs.MemoryMB, Threads: s.Config.Query.Threads, Rows: maxSpecs, Bytes: 4 << 30}
	a, err := s.Asker.Query(ctx, job)
	var all []store.Spec
	if err == nil {
		all, err = duck.SpecsOf(a, now)
	}
	s.specs.mu.Lock()
	s.specs.at, s.specs.took, s.specs.failed = now, time.Since(begun), err
	s.specs.mu.Unlock()
	if err != nil {
		return fmt.Errorf("compute specs: %w", err)
	}
	return s.keepSpecs(ctx, all)
}

// keepSpecs makes versions of what changed. A key that has no samples left in
// the time that is looked at keeps its newest version.
func (s *Server) keepSpecs(ctx context.Context, all []store.Spec) error {
	type pair struct{ job, platform string }
	var fresh []store.Spec
	touched := map[pair]bool{}
	s.specs.mu.Lock()
	for i := range all {
		n := &all[i]
		old, known := s.specs.by[keyOf(n)]
		same := old
		same.At, same.Version = n.At, n.Version
		if known && same == *n {
			continue
		}
		n.Version = old.Version + 1
		s.specs.by[keyOf(n)] = *n
		fresh = append(fresh, *n)
		touched[pair{n.Job, n.Platform}] = true
	}
	s.specs.changed = len(fresh)
	var messages []*wire.Specs
	if s.Publisher != nil {
		by := map[pair][]spec.Spec{}
		revision := map[pair]uint64{}
		for _, v := range s.specs.by {
			if p := (pair{v.Job, v.Platform}); touched[p] {
				by[p] = append(by[p], SpecOf(&v))
				revision[p] += uint64(v.Version) // each change makes the sum larger
			}
		}
		for p, of := range by {
			messages = append(messages, wire.SpecsOf(sample.JobName(p.job), sample.Platform(p.platform), revision[p], of))
		}
	}
	s.specs.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	s.Store.Add(&store.Batch{Specs: fresh})
	if err := s.Store.Flush(); err != nil {
		return fmt.Errorf("keep specs: %w", err)
	}
	for _, m := range messages {
		if err := s.Publisher.PutSpecs(ctx, m); err != nil {
			return fmt.Errorf("make specs known: %w", err)
		}
	}
	s.hub.tell("specs", map[string]any{"at": fresh[0].At, "changed": len(fresh)})
	return nil
}

// SpecOf is a version in the core's words.
func SpecOf(v *store.Spec) spec.Spec {
	out := spec.Spec{Key: keyOf(v), Samples: v.Samples, Tasks: int(v.Tasks), CPUMean: v.CPUMean, Mean: v.Mean, StdDev: v.StdDev, Updated: sample.Millis(v.At)}
	if out.State.UnmarshalText([]byte(v.State)) != nil {
		out.State = spec.Insufficient
	}
	return out
}
