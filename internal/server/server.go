package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/store"
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
}

// Parts are what a server is made of.
type Parts struct {
	Config  *config.Server
	Version string
	Store   *store.Store
	Asker   Asker
	Log     *slog.Logger
	Tokens  *Tokens
	// Feeds are where batches come from; none: only what is imported.
	Feeds []Feed
	// Publisher and Commander may be nil: then specs are only kept, and commands refused.
	Publisher Publisher
	Commander Commander
	// Now is the clock, time.Now if nil.
	Now func() time.Time
}

// Server is quell-server without its listeners.
type Server struct {
	Parts
	started time.Time
	hub     *hub
	callers *callers
	specs   specs
	flush   chan struct{} // asks for a commit now
	metrics *metrics
	mux     *http.ServeMux
	ready   atomic.Bool
}

// New makes a server; Run and ServeHTTP bring it to life.
func New(p Parts) (*Server, error) {
	if p.Now == nil {
		p.Now = time.Now
	}
	if p.Tokens == nil {
		p.Tokens = &Tokens{}
	}
	s := &Server{Parts: p, started: p.Now(), hub: newHub(p.Config.Limits.Streams), flush: make(chan struct{}, 1),
		callers: newCallers(p.Config.Limits.PerSecond, p.Config.Limits.Burst, p.Now)}
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
	for _, f := range s.Feeds {
		all.Go(func() { s.take(ctx, f) })
	}
	all.Go(func() { s.every(ctx, s.Config.Store.Upkeep, s.upkeep) })
	all.Go(func() { s.every(ctx, s.Config.Specs.Every, s.learn) })
	if len(s.Feeds) == 0 {
		all.Go(func() { s.commits(ctx) })
	}
	s.ready.Store(true)
	<-ctx.Done()
	s.ready.Store(false)
	s.hub.close()
	all.Wait()
	return s.Store.Flush()
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

// commits flushes what the API itself adds, where no feed does.
func (s *Server) commits(ctx context.Context) {
	tick := time.NewTicker(s.Config.Store.Flush)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.flush:
		}
		if err := s.Store.Flush(); err != nil {
			s.Log.Error("commit", "reason", err)
		}
	}
}

// now is the time in the store's words.
func (s *Server) now() sample.Millis { return sample.At(s.Now()) }

// job is a query over what the store has from from to to.
func (s *Server) job(sql string, from, to sample.Millis) (*duck.Job, *store.Snapshot) {
	sn := s.Store.Snapshot(from, to)
	q := s.Config.Query
	job := &duck.Job{SQL: sql, Files: duck.FilesOf(sn), From: from, To: to,
		Limits: duck.Limits{Time: q.Time, MemoryMB: q.MemoryMB, Threads: q.Threads, Rows: q.Rows, Bytes: int64(q.MaxMB) << 20}}
	for source, m := range s.Store.Marks() {
		job.Machines = append(job.Machines, duck.Machine{Machine: source.Machine, Boot: source.Boot, Stream: source.Stream, Batch: m.High, LastSeen: m.At})
	}
	return job, sn
}

// ask carries out a query.
func (s *Server) ask(ctx context.Context, sql string, from, to sample.Millis) (*duck.Answer, error) {
	job, sn := s.job(sql, from, to)
	defer sn.Close()
	return s.Asker.Query(ctx, job)
}
