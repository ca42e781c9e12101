package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/store"
	"github.com/quell-dev/quell/internal/store/dialect"
	"github.com/quell-dev/quell/internal/store/duck"
	"github.com/quell-dev/quell/internal/wire"
)

// Asker carries out a query over a store's segments (duck.Runner).
type Asker interface {
	Query(ctx context.Context, job *duck.Job) (*duck.Answer, error)
}

// Publisher makes specs known to agents (bus.Bus).
type Publisher interface {
	PutSpecs(ctx context.Context, m *wire.Specs) error
}

// Commander takes an operator's command to a machine (bus.Bus).
type Commander interface {
	Command(ctx context.Context, machine string, c *wire.Command) (*wire.Reply, error)
	// CommandAll takes one to all, and gives each reply as it comes until ctx ends
	// or, if expect is not 0, there are so many.
	CommandAll(ctx context.Context, c *wire.Command, expect int, each func(*wire.Reply)) error
}

// Holder gives one of several servers at a time the right to do something, and
// takes it back by ending do's context (bus.Bus).
type Holder interface {
	Hold(ctx context.Context, name, holder string, do func(context.Context)) error
}

// Parts are what a server is made of.
type Parts struct {
	Config  *config.Server
	Version string
	Store   *store.Store
	Asker   Asker
	// Learner and Engine make specs, the latter if both are there; without either
	// Asker does, by SQL.
	Learner Learner
	Engine  Engine
	Log     *slog.Logger
	Tokens  *Tokens
	// Feeds are where batches come from; none: only what is imported.
	Feeds []Feed
	// Check is why messages cannot come, nil if they can; it may be nil itself.
	Check func() error
	// Publisher and Commander may be nil: then specs are only kept, and commands refused.
	Publisher Publisher
	Commander Commander
	// Holder chooses among several servers of one store which of them takes in
	// messages, keeps the store in order and learns; nil: there is this one only. All
	// of them answer.
	Holder Holder
	// Now is the clock, time.Now if nil.
	Now func() time.Time
}

// Server is quell-server without its listeners.
type Server struct {
	Parts
	started  time.Time
	hub      *hub
	callers  *callers
	refusals refusals
	noted    atomic.Bool // refusals that are not committed yet
	specs    specs
	live     *live
	metrics  *metrics
	mux      *http.ServeMux
	ready    atomic.Bool
}

// New makes a server; Run and ServeHTTP bring it to life.
func New(p Parts) (*Server, error) {
	if p.Now == nil {
		p.Now = time.Now
	}
	if p.Tokens == nil {
		p.Tokens = &Tokens{}
	}
	s := &Server{Parts: p, started: p.Now(), hub: newHub(p.Config.Limits.Streams),
		callers: newCallers(p.Config.Limits.PerSecond, p.Config.Limits.Burst, p.Now)}
	s.live = newLive(p)
	s.metrics = newMetrics(s)
	s.mux = s.routes()
	return s, nil
}

// Run takes in messages, commits, keeps the store in order and learns specs,
// until ctx ends; then it commits what has come.
func (s *Server) Run(ctx context.Context) error {
	if err := s.loadSpecs(ctx); err != nil {
		return fmt.Errorf("read the specs so far: %w", err)
	}
	var all sync.WaitGroup
	if s.Holder == nil {
		all.Go(func() { s.lead(ctx) })
	} else {
		all.Go(func() { s.compete(ctx) })
	}
	all.Go(func() { s.every(ctx, refusedAgain, s.noteAgain) })
	all.Go(func() { s.every(ctx, s.Config.Store.Flush, s.keepNotes) })
	all.Go(func() { s.every(ctx, tokensEvery, func(context.Context) error { return s.Tokens.refresh() }) })
	if len(s.Feeds) == 0 || s.Holder != nil {
		all.Go(func() { s.every(ctx, s.Config.Store.Flush, func(context.Context) error { return s.Store.Flush() }) })
	}
	s.ready.Store(true)
	<-ctx.Done()
	s.ready.Store(false)
	s.hub.close()
	all.Wait()
	return s.Store.Flush()
}

// lead does what one server of a store does: it takes in messages, keeps the
// store in order and learns.
func (s *Server) lead(ctx context.Context) {
	var all sync.WaitGroup
	for _, f := range s.Feeds {
		all.Go(func() { s.take(ctx, f) })
	}
	all.Go(func() { s.every(ctx, s.Config.Store.Upkeep, s.upkeep) })
	all.Go(func() { s.every(ctx, s.Config.Specs.Every, s.learn) })
	if d := s.following(); d > 0 {
		all.Go(func() { s.every(ctx, d, s.follow) })
	}
	all.Wait()
}

// compete leads while this server is the one that may, and keeps up with who
// leads otherwise.
func (s *Server) compete(ctx context.Context) {
	name, err := os.Hostname()
	if err != nil {
		name = "a server"
	}
	var all sync.WaitGroup
	all.Go(func() { s.every(ctx, s.Config.Store.Flush, func(context.Context) error { return s.Store.Refresh() }) })
	leads := atomic.Bool{}
	all.Go(func() { // who does not lead reads the specs that are learnt
		s.every(ctx, max(s.Config.Specs.Between, s.Config.Store.Upkeep), func(ctx context.Context) error {
			if leads.Load() {
				return nil
			}
			return s.loadSpecs(ctx)
		})
	})
	all.Go(func() { // and removes copies of what is no more, or that are too many
		s.every(ctx, s.Config.Store.Upkeep, func(context.Context) error {
			if leads.Load() {
				return nil
			}
			return s.Store.Sweep()
		})
	})
	lead := func(ctx context.Context) {
		leads.Store(true)
		defer leads.Store(false)
		if err := errors.Join(s.Store.Refresh(), s.loadSpecs(ctx)); err != nil {
			s.Log.Error("read what the server before has left", "reason", err)
			return
		}
		s.lead(ctx)
	}
	for ctx.Err() == nil {
		if err := s.Holder.Hold(ctx, "lead", name, lead); err != nil && ctx.Err() == nil {
			s.Log.Error("wait for the lead; trying again", "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	all.Wait()
}

// every does something now and then, and says in the log why it did not come off.
func (s *Server) every(ctx context.Context, period time.Duration, do func(context.Context) error) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("upkeep", "reason", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// upkeep merges what is worth merging and removes what is past its time.
func (s *Server) upkeep(ctx context.Context) error {
	for ctx.Err() == nil {
		more, err := s.Store.Compact()
		if err != nil {
			return errors.Join(err, s.Store.Retain())
		}
		if !more {
			break
		}
	}
	return errors.Join(s.Store.Retain(), s.Store.Err())
}

// now is the time in the store's words.
func (s *Server) now() sample.Millis { return sample.At(s.Now()) }

// job is a query over what the store has from from to to.
func (s *Server) job(sql string, from, to sample.Millis) (*duck.Job, *store.Snapshot) {
	sn := s.Store.Snapshot(from, to)
	q := s.Config.Query
	job := &duck.Job{SQL: sql, Files: dialect.Files(sn), From: from, To: to,
		Limits: duck.Limits{Time: q.Time, MemoryMB: q.MemoryMB, Threads: q.Threads, Rows: q.Rows, Bytes: int64(q.MaxMB) << 20}}
	if !strings.Contains(strings.ToLower(sql), "machines") {
		return job, sn // two rows for each machine's each life: who does not ask for them need not wait for them
	}
	for source, m := range s.Store.Marks() {
		job.Machines = append(job.Machines, duck.Machine{Machine: source.Machine, Boot: source.Boot, Stream: source.Stream, Batch: m.High, LastSeen: m.At})
	}
	return job, sn
}

// ask carries out a query.
func (s *Server) ask(ctx context.Context, sql string, from, to sample.Millis) (*duck.Answer, error) {
	job, sn := s.job(sql, from, to)
	defer sn.Close()
	if err := bring(ctx, sn, job); err != nil {
		return nil, err
	}
	return s.Asker.Query(ctx, job)
}

// bring makes sure that the segments of the tables that a statement names are on
// this machine, for a store that is elsewhere, and takes the others out of its
// job: their views are made too. A view's name begins as its table's does.
func bring(ctx context.Context, sn *store.Snapshot, job *duck.Job) error {
	if !sn.Remote() {
		return nil
	}
	sql := strings.ToLower(job.SQL)
	var named []string
	for _, table := range store.Tables() {
		if strings.Contains(sql, strings.TrimSuffix(table, "s")) {
			named = append(named, table)
		} else {
			job.Files[table] = job.Files[table][:1] // that which has the columns
		}
	}
	return sn.Fetch(ctx, named...)
}
