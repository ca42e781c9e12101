package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/format/wire"
)

// fake answers queries, publishes specs and keeps decisions, and records its arguments. Machine
// m1 is there.
type fake struct {
	mu       sync.Mutex
	jobs     []duck.Job
	answer   func(*duck.Job) (*duck.Answer, error)
	specs    []*wire.Specs
	decided  []command.Decision // in the order in which they came
	standing map[string][]command.Decision
	revision uint64
	replies  map[string]*wire.Reply // what machines say of a decision; others are silent
	say      func(*wire.State)
	put      func(*wire.Specs) error // before specs are recorded; nil: nothing
}

func (f *fake) Query(_ context.Context, job *duck.Job) (*duck.Answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.jobs = append(f.jobs, *job)
	if f.answer != nil {
		return f.answer(job)
	}
	return &duck.Answer{Answer: dialect.Answer{Columns: []dialect.Column{}, Rows: []json.RawMessage{}}}, nil
}

func (f *fake) Stream(ctx context.Context, job *duck.Job, to duck.Sink) (duck.Summary, error) {
	return streamed(ctx, f, job, to)
}

// streamed passes a whole answer on.
func streamed(ctx context.Context, q interface {
	Query(context.Context, *duck.Job) (*duck.Answer, error)
}, job *duck.Job, to duck.Sink) (sum duck.Summary, err error) {
	a, err := q.Query(ctx, job)
	if err != nil {
		return sum, err
	}
	err = to.Columns(a.Columns)
	for _, row := range a.Rows {
		if err == nil {
			err = to.Row(row)
		}
	}
	return duck.Summary{Truncated: a.Truncated}, err
}

func (f *fake) PutSpecs(_ context.Context, m *wire.Specs) error {
	if f.put != nil {
		if err := f.put(m); err != nil {
			return err
		}
	}
	f.specs = append(f.specs, m)
	return nil
}

func (f *fake) Decide(_ context.Context, machine string, change func([]command.Decision) ([]command.Decision, error)) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.standing[machine]
	next, err := change(old)
	if err != nil {
		return 0, err
	}
	id := ""
	for _, d := range next {
		if !slices.ContainsFunc(old, func(o command.Decision) bool { return o.ID == d.ID }) {
			f.decided, id = append(f.decided, d), d.ID
		}
	}
	f.standing[machine] = next
	f.revision++
	for name, r := range f.replies {
		state := &wire.State{Machine: name, All: f.revision, Own: f.revision, Mode: "advise", From: "configuration"}
		if r != nil && id != "" {
			state.Outcomes = []*wire.Reply{{Id: id, Ok: r.Ok, None: r.None, Message: r.Message, Tasks: r.Tasks, Cap: r.Cap, Refused: r.Refused}}
		}
		f.say(state)
	}
	return f.revision, nil
}

func (f *fake) Decisions() (all []command.Standing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, machine := range slices.Sorted(maps.Keys(f.standing)) {
		all = append(all, command.Standing{Machine: machine, Revision: f.revision, List: f.standing[machine]})
	}
	return all
}

func (f *fake) ServeDecisions(ctx context.Context, _ func(*wire.State)) error {
	<-ctx.Done()
	return nil
}

func (f *fake) RefreshDecisions(context.Context) error { return nil }

var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

type bench struct {
	*Server
	fake  *fake
	store *store.Store
}

// tokens returns a viewer's, an operator's, and an expired operator's token.
func tokens(t testing.TB) *Tokens {
	t.Helper()
	known, err := LoadTokens("testdata/tokens")
	if err != nil {
		t.Fatal(err)
	}
	return known
}

func newBench(t testing.TB, change func(*Options)) *bench {
	t.Helper()
	c := config.DefaultServer()
	c.Limits.PerSecond, c.Limits.Burst = 1000, 1000
	st, err := store.Open(t.TempDir(), store.Options{Now: func() time.Time { return start }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	f := &fake{standing: map[string][]command.Decision{}}
	p := Options{Config: &c, Version: "test", Store: st, Asker: f, Learner: &learner{}, Publisher: f, Decider: f, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return start }}
	if change != nil {
		change(&p)
	}
	s, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	s.ready.Store(true)
	s.answers = 10 * time.Millisecond
	f.say = func(state *wire.State) { s.states.put(state, s.now()) }
	f.say(&wire.State{Machine: "m1", Mode: "advise", From: "configuration"})
	return &bench{s, f, st}
}

// do sends a request from an address.
func (b *bench) do(from, host, token, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = from+":4711", host
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func (b *bench) local(method, path, body string) *httptest.ResponseRecorder {
	return b.do("127.0.0.1", "localhost:9781", "", method, path, body)
}

// audits reads the audit log.
func (b *bench) audits(t testing.TB) []store.Audit {
	t.Helper()
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	return rowsOf[store.Audit](t, b.store, store.AuditLog)
}
