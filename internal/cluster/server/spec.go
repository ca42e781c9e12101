package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
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
	worked   bool          // the last computation; under learning
	begun    atomic.Uint64 // computations

	mu       sync.Mutex
	by       map[spec.Key]store.Spec // keys without enough tasks or machines are only here, and have no version
	took     time.Duration
	at       sample.Millis
	failed   error
	changed  int
	revision uint64 // of the newest message
	over     bool   // more than maxSpecs are stored
}

// jobPlatform is a job on a platform: the unit of a message to agents.
type jobPlatform struct{ job, platform string }

// maxSpecs bounds the specs in memory and the result of a computation.
const maxSpecs = 5_000_000

// loadSQL selects the newest versions, those with the newest samples first. Its memory depends on
// the number of keys: the view specs would need all versions at once.
const loadSQL = `WITH newest AS (
  SELECT job, platform, signal, variant, max("at") AS at FROM spec_history GROUP BY job, platform, signal, variant
)
SELECT h.job, h.platform, h.signal, h.variant, state, tasks, num_samples, cpu_usage_mean, cost_mean, cost_stddev,
  epoch_ms("last"), machines, machines_out, self_samples, self_mean, self_stddev, epoch_ms(h."at"), version, epoch_ms(since), cost_p50, cost_p90, cost_p99, by_usage, left_out, threshold_sigmas
FROM spec_history h JOIN newest n ON n.job = h.job AND n.platform = h.platform AND n.signal = h.signal AND n.variant = h.variant AND n.at = h."at"
ORDER BY "last" DESC, h.job, h.platform, h.signal, h.variant`

// startSpecs is loadSpecs for a server that starts, or begins to lead: without the stored versions
// it goes on, and the next computation announces all specs again. What was withdrawn is announced
// again in any case: the server before may have ended in between.
func (s *Server) startSpecs(ctx context.Context) error {
	err := s.loadSpecs(ctx)
	if ctx.Err() != nil {
		return err
	}
	if err == nil {
		s.specs.announceWithdrawn()
		return nil
	}
	s.Log.Error("load specs; going on without the stored versions", "reason", err)
	s.specs.mu.Lock()
	defer s.specs.mu.Unlock()
	s.specs.failed = fmt.Errorf("load specs: %w", err)
	if s.specs.by == nil {
		s.specs.by = map[spec.Key]store.Spec{}
	}
	return nil
}

// loadSpecs reads the newest versions, of the period of a computation: what is older is not in
// its result, and agents do not judge by it any more. If there are more specs than fit, the
// server works without the rest.
func (s *Server) loadSpecs(ctx context.Context) error {
	sn := s.Store.Snapshot(s.now().Add(-s.Config.Specs.LookBack), 0)
	defer sn.Close()
	a, err := s.askMost(ctx, sn, duck.Job{SQL: loadSQL})
	if err != nil {
		return err
	}
	all, err := dialect.SpecsOf(a.Rows, 0)
	if err != nil {
		return err
	}
	s.specs.mu.Lock()
	defer s.specs.mu.Unlock()
	s.specs.by, s.specs.over = make(map[spec.Key]store.Spec, len(all)), a.Truncated
	for i := range all {
		s.specs.by[dialect.KeyOf(&all[i])] = all[i]
		s.specs.revision = max(s.specs.revision, uint64(max(0, all[i].At)))
	}
	if a.Truncated {
		s.Log.Error("there are more specs than fit; agents keep the others until they are stale", "loaded", len(all))
	}
	return nil
}

func (s *specs) announceWithdrawn() {
	s.keeping.Lock()
	defer s.keeping.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unannounced == nil {
		s.unannounced = map[jobPlatform]bool{}
	}
	for _, v := range s.by {
		if withdrawn(&v) {
			s.unannounced[jobPlatform{v.Job, v.Platform}] = true
		}
	}
}

// ownTime is the time limit of one of the server's own queries.
const ownTime = time.Hour

// askMost executes one of the server's own queries, within separate limits. Its answer may be
// cut off.
func (s *Server) askMost(ctx context.Context, sn *store.Snapshot, job duck.Job) (*duck.Answer, error) {
	release, err := s.forSpecs.take(ctx, "")
	if err != nil {
		return nil, err
	}
	defer release()
	job.Limits = duck.Limits{Time: ownTime, MemoryMB: s.Config.Specs.MemoryMB, Threads: s.Config.Query.Threads, Rows: maxSpecs, Bytes: 4 << 30}
	if err := s.prepare(ctx, sn, &job, math.MaxInt64); err != nil {
		return nil, err
	}
	return s.Asker.Query(ctx, &job)
}

// askAll is askMost for an answer that must be complete.
func (s *Server) askAll(ctx context.Context, sn *store.Snapshot, job duck.Job) (*duck.Answer, error) {
	a, err := s.askMost(ctx, sn, job)
	if err == nil && a.Truncated {
		err = fmt.Errorf("the result has more than the allowed %d rows", len(a.Rows))
	}
	return a, err
}

// learn computes all specs, stores those that changed as new versions, and announces
// them.
func (s *Server) learn(ctx context.Context) error { return s.learnSince(ctx, s.specs.begun.Load()) }

// learnSince is learn for a request that came when so many computations had begun. All that wait for one
// share the next: a client that gives up and asks again does not keep the server computing.
func (s *Server) learnSince(ctx context.Context, had uint64) (err error) {
	s.specs.learning.Lock()
	defer s.specs.learning.Unlock()
	if s.specs.begun.Load() > had && s.specs.worked {
		return nil
	}
	s.specs.begun.Add(1)
	defer func() { s.specs.worked = err == nil }()
	now := s.now()
	begun := time.Now()
	all, err := s.compute(ctx, now)
	s.specs.mu.Lock()
	s.specs.at, s.specs.took, s.specs.failed = now, time.Since(begun), err
	s.specs.mu.Unlock()
	if err != nil {
		return fmt.Errorf("compute specs: %w", err)
	}
	s.warnOfLeftOut(all)
	return s.keepSpecs(ctx, append(all, s.specs.gone(all, now)...))
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
	revoked, err := s.revocations(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range revoked {
		windows = append(windows, store.Window{Machine: r.Machine, Job: r.Job, From: r.From, To: min(r.To, now)})
	}
	// The learner fetches the samples without a digest.
	learnt, err := s.Learner.Learn(ctx, sn, from, windows, p, now)
	if err != nil {
		return nil, err
	}
	s.live.do(func(by *spec.Live) {
		by.Rebase(now, learnt)
		by.Revoke(revoked)
	})
	return s.rowsOfSpecs(learnt), nil
}

// windowsSQL selects the times when costs were not normal: for each victim from the first
// bad interval of an incident to its end, or as far as it is known to last. A lasting
// change is not excluded. Of one machine these are the newest 10,000: it may report as many as it likes.
const windowsSQL = `SELECT machine, victim_task, signal, epoch_ms(began), epoch_ms(coalesce(closed, updated)), id, closed IS NULL
FROM incidents WHERE NOT follows QUALIFY row_number() OVER (PARTITION BY machine ORDER BY updated DESC) <= 10000`

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
func (s *Server) rowsOfSpecs(learnt []spec.Computed) []store.Spec {
	var names map[uint64]string
	if slices.ContainsFunc(learnt, func(l spec.Computed) bool { return len(l.Out) > 0 }) {
		names = s.machineNames()
	}
	all := make([]store.Spec, len(learnt))
	for i := range learnt {
		l := &learnt[i]
		all[i] = store.Spec{At: int64(l.Updated), Job: string(l.Job), Platform: string(l.Platform), Signal: string(l.Signal), Variant: l.Variant,
			State: l.State.String(), Tasks: int64(l.Tasks), Samples: l.Samples, CPUMean: l.CPUMean, Mean: l.Mean, StdDev: l.StdDev, Last: int64(l.Last),
			Since: int64(l.Since), P50: l.P50, P90: l.P90, P99: l.P99, Machines: int64(l.Machines), MachinesOut: int64(l.OutCount), LeftOut: leftOut(l.Out, names),
			SelfSamples: l.SelfSamples, SelfMean: l.SelfMean, SelfStdDev: l.SelfStdDev, Sigmas: l.Sigmas}
		if text, err := json.Marshal(l.Usage); err == nil && len(l.Usage) > 0 { // finite numbers: it cannot fail
			all[i].Usage = string(text)
		}
	}
	return all
}

// machineNames are the names of the machines that have sent something, by their hash.
func (s *Server) machineNames() map[uint64]string {
	names := map[uint64]string{}
	for source := range s.Store.Marks() {
		names[spec.HashMachine(source.Machine)] = source.Machine
	}
	return names
}

// leftOut names machines as a JSON list, at most ten of them.
func leftOut(ids []uint64, names map[uint64]string) string {
	if len(ids) == 0 {
		return ""
	}
	list := make([]string, min(len(ids), 10))
	for i := range list {
		name, known := names[ids[i]]
		if !known { // its samples were imported
			name = fmt.Sprintf("#%016x", ids[i])
		}
		list[i] = name
	}
	slices.Sort(list)
	text, err := json.Marshal(list)
	if err != nil { // strings: it cannot fail
		return ""
	}
	return string(text)
}

// warnOfLeftOut logs which machines a computation left out of specs: they report something that
// the others do not.
func (s *Server) warnOfLeftOut(all []store.Spec) {
	specs, of := 0, map[string]int{}
	for i := range all {
		if all[i].MachinesOut == 0 {
			continue
		}
		specs++
		for _, name := range machinesLeftOut(&all[i]) {
			of[name]++
		}
	}
	if specs == 0 {
		return
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	s.Log.Warn("machines were left out of specs: their costs are far from those of the others", "specs", specs, "machines", names[:min(len(names), 10)])
}

// machinesLeftOut is the inverse of leftOut.
func machinesLeftOut(v *store.Spec) (names []string) {
	if v.LeftOut == "" || json.Unmarshal([]byte(v.LeftOut), &names) != nil {
		return nil
	}
	return names
}

// gone returns the known specs that a computation does not have any more, because no samples of
// the last specs.look_back teach: they were revoked, or the job ended. They are withdrawn:
// agents that have them are told that they are insufficient, and judge by their own.
func (s *specs) gone(all []store.Spec, now sample.Millis) (gone []store.Spec) {
	left := make(map[spec.Key]bool, len(all))
	for i := range all {
		left[dialect.KeyOf(&all[i])] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range s.by {
		if !left[k] {
			gone = append(gone, store.Spec{At: int64(now), Job: v.Job, Platform: v.Platform, Signal: v.Signal, Variant: v.Variant, State: spec.Insufficient.String(), Last: v.Last})
		}
	}
	return gone
}

// withdrawn reports whether no samples teach a spec any more.
func withdrawn(v *store.Spec) bool {
	return v.State == spec.Insufficient.String() && v.Samples == 0
}

// maxFailed is the number of announcements that may fail in a row: then there is no connection.
const maxFailed = 10

// keepSpecs stores changed specs as versions and announces them. Failed announcements are
// retried each time, and keep back no others. What is withdrawn and announced is forgotten.
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
	err := s.announce(ctx)
	s.specs.forget()
	return err
}

// announce sends the messages about changed specs.
func (s *Server) announce(ctx context.Context) error {
	if s.Publisher == nil {
		clear(s.specs.unannounced)
		return nil
	}
	var first error
	failed, row := 0, 0
	all := s.specs.messages()
	for _, m := range all {
		if err := s.Publisher.PutSpecs(ctx, m); err != nil {
			first = cmp.Or(first, err)
			failed++
			if row++; row == maxFailed || ctx.Err() != nil {
				break
			}
			continue
		}
		row = 0
		delete(s.specs.unannounced, jobPlatform{m.Job, m.Platform})
	}
	if failed > 0 {
		return fmt.Errorf("announce specs: %d of %d messages failed, the first: %w", failed, len(all), first)
	}
	return nil
}

// forget drops the specs that are withdrawn and announced.
func (s *specs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.by, func(_ spec.Key, v store.Spec) bool {
		return withdrawn(&v) && v.Version > 0 && !s.unannounced[jobPlatform{v.Job, v.Platform}]
	})
}

// renew assigns the next version to changed specs and returns them. A spec without enough
// tasks or machines has no version, unless it replaces one that has: no task is judged by it,
// and there are as many as agents like to report.
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
		if unfit := n.State == spec.Insufficient.String(); unfit && old.Version == 0 {
			if withdrawn(n) {
				delete(s.by, dialect.KeyOf(n))
			} else if known || len(s.by) < maxSpecs {
				s.by[dialect.KeyOf(n)] = *n
			}
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

// messages returns the messages that still have to be announced. Their revision is the time,
// or the next number after the newest: it grows even if specs are forgotten or the clock is
// set back.
func (s *specs) messages() (all []*wire.Specs) {
	if len(s.unannounced) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[jobPlatform][]spec.Spec{}
	newest := int64(0)
	for _, v := range s.by {
		if p := (jobPlatform{v.Job, v.Platform}); s.unannounced[p] && v.Version > 0 {
			by[p] = append(by[p], dialect.SpecOf(&v))
			newest = max(newest, v.At)
		}
	}
	s.revision = max(s.revision+1, uint64(max(0, newest)))
	for p, of := range by {
		all = append(all, wire.SpecsOf(sample.JobName(p.job), sample.Platform(p.platform), s.revision, of))
	}
	return all
}
