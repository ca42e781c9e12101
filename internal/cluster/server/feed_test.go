package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// stream is a feed of batches that records what was marked as Done.
type stream struct {
	mu      sync.Mutex
	batches []store.Batch
	given   int
	done    uint64
	stopped bool
	fails   error // error of the next call of Next, once
}

func (f *stream) Next(ctx context.Context) ([]store.Batch, error) {
	f.mu.Lock()
	if err := f.fails; err != nil {
		f.fails = nil
		f.mu.Unlock()
		return nil, err
	}
	n := min(3, len(f.batches)-f.given)
	out := f.batches[f.given : f.given+n]
	f.given += n
	f.mu.Unlock()
	if n == 0 {
		<-ctx.Done()
	}
	return out, nil
}

func (f *stream) Ack(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = seq
}

func (f *stream) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
}

func TestAFeedForgetsWhatIsStored(t *testing.T) {
	f := &stream{}
	for i := range uint64(10) {
		n := i%5 + 1 // each number twice
		f.batches = append(f.batches, store.Batch{Source: store.Source{Stream: "samples", Machine: "m"}, N: n, Seq: i + 1,
			Samples: []sample.Sample{{TS: sample.At(start) + sample.Millis(n), Machine: "m", Task: "/a", Signal: sample.CPI}}})
	}
	b := newBench(t, func(p *Options) { p.Feeds = []Feed{f}; p.Config.Store.Flush = 100 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	quelltest.Until(t, "all is stored", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.done == 10 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !f.stopped {
		t.Error("agents could still send to a server that has ended")
	}
	if st := b.store.Stats(); st.Rows != 5 || st.Duplicates != 5 {
		t.Errorf("%+v, want 5 rows, 5 duplicates", st)
	}
	w := b.local("GET", "/v1/machines", "")
	if !strings.Contains(w.Body.String(), `"machine":"m"`) || !strings.Contains(w.Body.String(), `"batch":5`) {
		t.Errorf("machines: %s", w.Body)
	}
}

// slowStream returns most of its batches only during the first Done, which does not
// return until all were read.
type slowStream struct {
	*stream
	first      int           // batches returned at once
	begun, all chan struct{} // closed when Done is called, and when all was read
}

func (f *slowStream) Next(ctx context.Context) ([]store.Batch, error) {
	f.mu.Lock()
	given := f.given
	f.mu.Unlock()
	switch {
	case given == f.first:
		select {
		case <-f.begun:
		case <-ctx.Done():
			return nil, nil
		}
	case given == len(f.batches):
		select {
		case <-f.all:
		default:
			close(f.all)
		}
	}
	return f.stream.Next(ctx)
}

func (f *slowStream) Ack(seq uint64) {
	if seq == uint64(f.first) {
		close(f.begun)
	}
	<-f.all
	f.stream.Ack(seq)
}

// Reading continues during a slow commit.
func TestReadingGoesOnBesideACommit(t *testing.T) {
	f := &slowStream{&stream{}, 3, make(chan struct{}), make(chan struct{})}
	for i := range uint64(60) {
		f.batches = append(f.batches, store.Batch{Source: store.Source{Stream: "samples", Machine: "m"}, N: i + 1, Seq: i + 1,
			Samples: []sample.Sample{{TS: sample.At(start) + sample.Millis(i), Machine: "m", Task: "/a", Signal: sample.CPI}}})
	}
	b := newBench(t, func(p *Options) { p.Feeds = []Feed{f}; p.Config.Store.Flush = 100 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	quelltest.Until(t, "all is stored", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.done == 60 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if st := b.store.Stats(); st.Rows != 60 {
		t.Errorf("%+v, want 60 rows", st)
	}
}

// TestAttackLargeMessages: what waits to be committed is bounded by its size too: a message of 1 MB may
// have one sample, or one record.
func TestAttackLargeMessages(t *testing.T) {
	f := &stream{}
	for i := range uint64(60) {
		f.batches = append(f.batches, store.Batch{Source: store.Source{Stream: "records", Machine: "m"}, N: i + 1, Seq: i + 1, Bytes: 100_000,
			Actions: []store.Action{{At: int64(sample.At(start)), Machine: "m"}}})
	}
	b := newBench(t, func(p *Options) {
		p.Feeds = []Feed{f}
		p.Config.Store.Flush, p.Config.Store.MaxPending = time.Minute, 1000
	})
	for i, want := range []bool{false, true} {
		b.store.Add(&store.Batch{Bytes: 1000 * sampleBytes / 2})
		if got := b.behind(1); got != want {
			t.Errorf("after %d: %v", i+1, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	quelltest.Until(t, "all is stored, before the minute is over", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.done == 60 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if b.behind(1) || b.store.PendingBytes() != 0 {
		t.Errorf("%d bytes wait, and all is stored", b.store.PendingBytes())
	}
}

// TestAFeedBeginsAnew: a feed that restarts, as after a power cut of its server, returns
// messages with lower numbers than before: they are stored and marked as Done as usual.
func TestAFeedBeginsAnew(t *testing.T) {
	batch := func(n, seq uint64) store.Batch {
		return store.Batch{Source: store.Source{Stream: "samples", Machine: "m"}, N: n, Seq: seq,
			Samples: []sample.Sample{{TS: sample.At(start) + sample.Millis(n), Machine: "m", Task: "/a", Signal: sample.CPI}}}
	}
	f := &stream{batches: []store.Batch{batch(1, 101), batch(2, 102)}}
	b := newBench(t, func(p *Options) { p.Feeds = []Feed{f}; p.Config.Store.Flush = 50 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	done := func(want uint64) func() bool {
		return func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.done == want }
	}
	quelltest.Until(t, "the first are stored", done(102))
	f.mu.Lock()
	f.batches, f.given, f.fails = []store.Batch{batch(2, 7), batch(3, 8)}, 0, errors.New("the connection was renewed")
	f.mu.Unlock()
	quelltest.Until(t, "those of the new connection are stored", done(8))
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if st := b.store.Stats(); st.Rows != 3 || st.Duplicates != 1 {
		t.Errorf("%+v, want 3 rows, 1 duplicate", st)
	}
}

// TestADroppedMessageIsNoBatch: what a feed has dropped is acknowledged, and counts as no batch. An entry of the audit
// log is none either.
func TestADroppedMessageIsNoBatch(t *testing.T) {
	f := &stream{batches: []store.Batch{
		{Source: store.Source{Stream: "samples", Machine: "m"}, N: 1, Seq: 1, Samples: []sample.Sample{{TS: sample.At(start), Machine: "m", Task: "/a", Signal: sample.CPI}}},
		{Source: store.Source{Stream: "samples"}, Seq: 2}}}
	b := newBench(t, func(p *Options) { p.Feeds = []Feed{f}; p.Config.Store.Flush = 50 * time.Millisecond })
	b.Refused(store.Audit{Who: "agent.m", What: "bus: publish", Outcome: "the message was dropped"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	quelltest.Until(t, "both are acknowledged", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.done == 2 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if st := b.store.Stats(); st.Batches != 1 || st.Samples != 1 {
		t.Errorf("%+v, want 1 batch, 1 sample", st)
	}
}

// timed is a connection that knows until when the server waits for a request on it.
type timed struct {
	net.Conn
	set   atomic.Int64 // how often there was an end
	until atomic.Int64 // ns since 1970; 0: for ever
}

func (c *timed) SetReadDeadline(at time.Time) error {
	if at.IsZero() {
		c.until.Store(0)
	} else {
		c.set.Add(1)
		c.until.Store(at.UnixNano())
	}
	return c.Conn.SetReadDeadline(at)
}

// timedListener accepts timed connections.
type timedListener struct{ net.Listener }

func (l timedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &timed{Conn: c}, nil
}

// onConnection is the key of a request's connection in its context.
type onConnection struct{}

// An answer may take longer than the time limit for reading its request: when the query runs, the
// limit is no longer set. If it were, its end would end the query.
func TestAnAnswerMayTakeLongerThanItsRequest(t *testing.T) {
	var asked atomic.Int64
	b := newBench(t, func(p *Options) {
		p.Asker = asker(func(ctx context.Context) {
			asked.Add(1)
			if c := ctx.Value(onConnection{}).(*timed); c.set.Load() == 0 || c.until.Load() != 0 {
				t.Errorf("the limit was set %d times, and is %d", c.set.Load(), c.until.Load())
			}
		})
	})
	web := httptest.NewUnstartedServer(b)
	web.Listener = timedListener{web.Listener}
	web.Config.ReadTimeout = time.Hour
	web.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, onConnection{}, c)
	}
	web.Start()
	defer web.Close()
	for _, c := range []struct{ method, path, body string }{{"GET", "/v1/incidents", ""}, {"POST", "/v1/query", `{"sql":"SELECT 1"}`}} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, web.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Close = true
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %d %s, %v", c.method, c.path, resp.StatusCode, text, err)
		}
		resp.Body.Close()
	}
	if asked.Load() != 2 {
		t.Errorf("%d queries ran", asked.Load())
	}
}

// asker is called for each query, which has no rows.
type asker func(context.Context)

func (a asker) Query(ctx context.Context, _ *duck.Job) (*duck.Answer, error) {
	a(ctx)
	return &duck.Answer{Answer: dialect.Answer{Columns: []dialect.Column{}, Rows: []json.RawMessage{}}}, nil
}

func (a asker) Stream(ctx context.Context, job *duck.Job, to duck.Sink) (duck.Summary, error) {
	return streamed(ctx, a, job, to)
}

// Refusals reach the audit log even after a full disk.
func TestRefusalsOutliveAFullDisk(t *testing.T) {
	b := newBench(t, nil)
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	// A file in place of a folder fails as a full disk does, at the first write.
	blocked := filepath.Join(sn.Dir, store.AuditLog)
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.Refused(store.Audit{Who: "vera", What: "bus: publish", Outcome: "its credentials do not allow it"})
	if err := b.keepNotes(t.Context()); err == nil {
		t.Fatal("it was kept nowhere")
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if err := b.keepNotes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := rowsOf[store.Audit](t, b.store, store.AuditLog); len(all) != 1 || all[0].Who != "vera" {
		t.Errorf("the audit log has %+v", all)
	}
}
