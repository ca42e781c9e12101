package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/certificate"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Querier executes a query over a store's segments (duck.Runner).
type Querier interface {
	Query(ctx context.Context, job *duck.Job) (*duck.Answer, error)
	// Stream passes the answer on as it comes.
	Stream(ctx context.Context, job *duck.Job, to duck.Sink) (duck.Summary, error)
}

// Publisher announces specs to agents (bus.Bus).
type Publisher interface {
	PutSpecs(ctx context.Context, m *wire.Specs) error
}

// Decider keeps what operators have decided, and sends it to the machines (bus.Bus).
type Decider interface {
	// Decide changes what stands for a machine, or for all if it is empty, and returns its
	// revision. change may be called again if another server was faster.
	Decide(ctx context.Context, machine string, change func([]command.Decision) ([]command.Decision, error)) (revision uint64, err error)
	// Decisions returns what stands, for all first.
	Decisions() []command.Standing
	// ServeDecisions passes on what machines say of it, and sends each what it lacks, until ctx
	// ends.
	ServeDecisions(ctx context.Context, each func(*wire.State)) error
	// RefreshDecisions signs again what was signed long ago.
	RefreshDecisions(ctx context.Context) error
}

// Watcher is told of incidents that have changed. It does not wait, and keeps no record. One that has a
// method Forget is told when another server leads from now on.
type Watcher interface{ Incident(r *incident.Record) }

// Leaser lets one of several servers at a time do some work, and ends that right by
// ending do's context (bus.Bus).
type Leaser interface {
	RunWithLease(ctx context.Context, name, holder string, do func(context.Context)) error
}

// Credentials is what is known of the credentials for the bus.
type Credentials struct {
	Expires time.Time // the server's own; zero: never
	Due     int       // number of holders whose credentials should be renewed
}

// Options are the components of a server.
type Options struct {
	Config  *config.Server
	Version string
	Store   *store.Store
	Asker   Querier
	Learner Learner
	Log     *slog.Logger
	Tokens  *Tokens
	// Certificates are read again when they change; their expiry is reported.
	Certificates []*certificate.Files
	// Feeds are the sources of batches; none: only imports.
	Feeds []Feed
	// Check returns why messages cannot come, nil if they can; it may be nil itself.
	Check func() error
	// Backlog returns what agents wait for; it may be nil.
	Backlog func() Backlog
	// Credentials returns what is known of the credentials for the bus; it may be nil.
	Credentials func() Credentials
	// Without Publisher specs are only stored; without Decider commands are refused.
	Publisher Publisher
	Decider   Decider
	// Holder selects which of several servers of one store ingests messages, maintains
	// the store and learns specs; nil: this is the only one. All of them answer requests.
	Holder Leaser
	// Watchers are told of incidents as they arrive: of several servers, those of the leading one.
	Watchers []Watcher
	// Collectors have metrics of other parts of the program.
	Collectors []prometheus.Collector
	// Pages are what a browser gets at / and below /ui/, without a token: they hold no data.
	// nil: nothing.
	Pages http.Handler
	// Now is the clock, time.Now if nil.
	Now func() time.Time
}

// Server is quell-server without its listeners.
type Server struct {
	Options
	hub      *hub
	callers  *callers
	refusals refusals
	noted    atomic.Bool // there are uncommitted refusals
	specs    specs
	states   states
	live     *live
	canned   []cluster.Canned
	memory   *memory       // of requests and answers in progress
	patience time.Duration // with a client that does not read
	answers  time.Duration // how long machines may take to say what they have done
	origins  *http.CrossOriginProtection
	// Queries by purpose: those of the computation of specs, the server's own for its lists,
	// and those that users write.
	forSpecs, forLists, forUsers *slots
	metrics                      *metrics
	mux                          *http.ServeMux
	ready                        atomic.Bool
	stops                        chan struct{} // closed when Run is to end
}

// New makes a server; Run and ServeHTTP operate it.
func New(p Options) (*Server, error) {
	if p.Now == nil {
		p.Now = time.Now
	}
	p.Tokens = cmp.Or(p.Tokens, &Tokens{})
	c := p.Config
	s := &Server{Options: p, hub: newHub(c.Limits.Streams, c.Limits.StreamsPerCaller), callers: newCallers(c.Limits.PerSecond, c.Limits.Burst, p.Now),
		stops: make(chan struct{}), memory: newMemory(int64(c.Limits.AnswersMB) << 20), patience: patience, answers: commandTime, origins: http.NewCrossOriginProtection(),
		forSpecs: newSlots(1, 1, ownTime), forLists: newSlots(1, 1, 2*c.Query.Time), forUsers: newSlots(c.Query.AtOnce, c.Query.PerCaller, 2*c.Query.Time)}
	if err := yaml.Unmarshal(cannedQueries, &s.canned); err != nil {
		return nil, fmt.Errorf("read canned queries: %w", err)
	}
	s.live = newLive(p)
	s.metrics = newMetrics(s)
	s.mux = s.routes()
	return s, nil
}

// Run ingests messages, commits, maintains the store and learns specs until ctx ends.
// Then it commits what has arrived.
func (s *Server) Run(ctx context.Context) error {
	if err := s.startSpecs(ctx); err != nil {
		return fmt.Errorf("load specs: %w", err)
	}
	var all sync.WaitGroup
	if s.Holder == nil {
		all.Go(func() { s.lead(ctx) })
	} else {
		all.Go(func() { s.campaign(ctx) })
	}
	if s.Decider != nil {
		all.Go(func() { s.serveDecisions(ctx) })
	}
	all.Go(func() { s.every(ctx, time.Minute, s.noteAgain) })
	all.Go(func() { s.every(ctx, s.Config.Store.Flush, s.keepNotes) })
	all.Go(func() { s.every(ctx, tokensEvery, func(context.Context) error { return s.Tokens.refresh() }) })
	for _, f := range s.Certificates {
		all.Go(func() { f.Watch(ctx, func(err error) { s.Log.Error("read certificates again", "reason", err) }) })
	}
	all.Go(func() { s.every(ctx, time.Hour, s.warnOfExpiry) })
	if len(s.Feeds) == 0 || s.Holder != nil {
		all.Go(func() { s.every(ctx, s.Config.Store.Flush, func(context.Context) error { return s.Store.Flush() }) })
	}
	s.ready.Store(true)
	<-ctx.Done()
	s.ready.Store(false)
	close(s.stops)
	s.hub.close()
	all.Wait()
	return s.Store.Flush()
}

// lasting is the context of work that goes on if the client that has asked for it is gone: it ends with
// the server.
func (s *Server) lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-s.stops:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// lead does the work of the leading server of a store: it ingests messages, maintains the
// store and learns specs.
func (s *Server) lead(ctx context.Context) {
	var all sync.WaitGroup
	for _, f := range s.Feeds {
		all.Go(func() { s.ingest(ctx, f) })
	}
	all.Go(func() { s.every(ctx, s.Config.Store.Upkeep, s.upkeep) })
	all.Go(func() { s.every(ctx, s.Config.Specs.Every, s.learn) })
	if s.Decider != nil {
		all.Go(func() { s.every(ctx, rollOutEvery, s.rollOut) })
		all.Go(func() { s.every(ctx, time.Hour, s.Decider.RefreshDecisions) })
	}
	if d := s.following(); d > 0 {
		all.Go(func() { s.every(ctx, d, s.announceLive) })
	}
	all.Wait()
}

// campaign leads while this server holds the lease, and otherwise follows the leading
// server.
func (s *Server) campaign(ctx context.Context) {
	name, err := os.Hostname()
	if err != nil {
		name = "a server"
	}
	var all sync.WaitGroup
	all.Go(func() { s.every(ctx, s.Config.Store.Flush, func(context.Context) error { return s.Store.Refresh() }) })
	leads := atomic.Bool{}
	unlessLeading := func(period time.Duration, do func(context.Context) error) {
		s.every(ctx, period, func(ctx context.Context) error {
			if leads.Load() {
				return nil
			}
			return do(ctx)
		})
	}
	all.Go(func() { unlessLeading(max(s.Config.Specs.Between, s.Config.Store.Upkeep), s.loadSpecs) })
	// Copies that are obsolete or too many are removed.
	all.Go(func() { unlessLeading(s.Config.Store.Upkeep, func(context.Context) error { return s.Store.Sweep() }) })
	lead := func(ctx context.Context) {
		leads.Store(true)
		defer leads.Store(false)
		defer s.forget()
		if err := errors.Join(s.Store.Refresh(), s.startSpecs(ctx)); err != nil {
			s.Log.Error("read the state of the previous server", "reason", err)
			return
		}
		s.lead(ctx)
	}
	for ctx.Err() == nil {
		if err := s.Holder.RunWithLease(ctx, "lead", name, lead); err != nil && ctx.Err() == nil {
			s.Log.Error("wait for the lease; trying again", "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	all.Wait()
}

// forget tells the watchers that another server leads from now on.
func (s *Server) forget() {
	for _, w := range s.Watchers {
		if f, can := w.(interface{ Forget() }); can {
			f.Forget()
		}
	}
}

// every calls do periodically and logs its errors.
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

// upkeep merges segments and removes expired ones.
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

// expiries says when certificates and tokens end.
func (s *Server) expiries() (all []certificate.Expiry) {
	for _, f := range s.Certificates {
		all = append(all, f.Expiries()...)
	}
	return append(all, s.Tokens.expiries()...)
}

// warnOfExpiry logs what is about to expire.
func (s *Server) warnOfExpiry(context.Context) error {
	for _, text := range certificate.Warnings(s.expiries(), s.Now()) {
		s.Log.Warn("renew it", "reason", text)
	}
	return nil
}

// now is the current time as sample.Millis.
func (s *Server) now() sample.Millis { return sample.At(s.Now()) }

// ask executes a query over the store's data between job.From and job.To for an answer, in one of
// the slots and within the limits of users' queries, and of job.Limits.Rows if there is such a limit.
// to makes the answer of the rows.
func (s *Server) ask(ctx context.Context, in *slots, job *duck.Job, a *answer, to duck.Sink) (sum duck.Summary, err error) {
	release, err := in.take(ctx, a.caller)
	if err != nil {
		return sum, err
	}
	defer release()
	sn := s.Store.Snapshot(job.From, job.To)
	defer sn.Close()
	q := s.Config.Query
	job.Limits = duck.Limits{Time: q.Time, MemoryMB: q.MemoryMB, Threads: q.Threads, Rows: min(q.Rows, cmp.Or(job.Limits.Rows, q.Rows)), Bytes: int64(q.MaxMB) << 20}
	if err := s.prepare(ctx, sn, job, int64(s.Config.Store.S3.CopiesMB)<<20); err != nil {
		return sum, err
	}
	// A client that does not read keeps the slot no longer than one that does.
	over := time.AfterFunc(q.Time, func() {
		a.hurry(&duck.Error{Kind: duck.Exceeded, Message: fmt.Sprintf("the answer was not read within %s", q.Time)})
	})
	defer over.Stop()
	return s.Asker.Stream(ctx, job, to)
}

// prepare sets the files and machines of a query over a snapshot. Of a remote store it fetches
// the segments of the tables that the statement names; the other tables are empty, since views
// of all are created. What is larger than most bytes is not fetched.
func (s *Server) prepare(ctx context.Context, sn *store.Snapshot, job *duck.Job, most int64) error {
	sql := strings.ToLower(job.SQL)
	job.Files = dialect.Files(sn)
	if strings.Contains(sql, "machines") { // two rows for each life of each agent: other queries do not load them
		for source, m := range s.Store.Marks() {
			job.Machines = append(job.Machines, duck.Machine{Machine: source.Machine, Boot: source.Boot, Stream: source.Stream, Batch: m.High, LastSeen: m.At})
		}
	}
	if !sn.Remote() {
		return nil
	}
	var named []string
	words := strings.FieldsFunc(sql, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) }) // num_samples, of specs, is one
	if strings.HasPrefix(strings.TrimSpace(sql), "describe ") {
		words = nil // it reads columns only
	}
	for _, table := range store.Tables() {
		if slices.Contains(words, table) || slices.Contains(words, dialect.Table(table)) {
			named = append(named, table)
		} else {
			job.Files[table] = job.Files[table][:1] // the file with the columns
		}
	}
	size := int64(0)
	for i := range sn.Segments {
		if slices.Contains(named, sn.Segments[i].Table()) {
			size += sn.Segments[i].Bytes
		}
	}
	if size > most { // without room for them no commit could be made either
		return &duck.Error{Kind: duck.Exceeded, Message: fmt.Sprintf("the query needs %d MB of the store on the server's disk, and store.s3.copies_mb is %d", size>>20, most>>20)}
	}
	return sn.Fetch(ctx, named...)
}
