package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/certificate"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// A malicious or clumsy viewer, and web pages.

// TestCrossSite: without a tokens file, a page of another site that is open in a browser on
// the server's machine runs no SQL, in any way that browsers offer without a preflight request.
func TestCrossSite(t *testing.T) {
	const query = `{"sql":"SELECT 1"}`
	for _, c := range []struct {
		name, method, path, body, header string
		want                             int
	}{
		{"curl", "POST", "/v1/query", query, "Content-Type: application/json", 200},
		{"curl with a charset", "POST", "/v1/query", query, "Content-Type: application/json; charset=utf-8", 200},
		{"the API's own page", "POST", "/v1/query", query, "Content-Type: application/json|Sec-Fetch-Site: same-origin", 200},
		{"typed into the browser", "GET", "/v1/queries", "", "Sec-Fetch-Site: none", 200},
		{"a form as text", "POST", "/v1/query", query, "Content-Type: text/plain|Sec-Fetch-Site: cross-site", 403},
		{"a form as text, of an old browser", "POST", "/v1/query", query, "Content-Type: text/plain|Origin: https://evil.example", 403},
		{"a form as text, of a browser that says nothing", "POST", "/v1/query", query, "Content-Type: text/plain", 415},
		{"a blob without a type", "POST", "/v1/query", query, "", 415},
		{"a form", "POST", "/v1/query", query, "Content-Type: application/x-www-form-urlencoded", 415},
		{"JSON by a page that was allowed elsewhere", "POST", "/v1/query", query, "Content-Type: application/json|Origin: https://evil.example", 403},
		{"another port of this machine", "POST", "/v1/query", query, "Content-Type: application/json|Origin: http://localhost:8000|Sec-Fetch-Site: same-site", 403},
		{"a sandboxed page", "POST", "/v1/query", query, "Content-Type: application/json|Origin: null", 403},
		{"an image", "GET", "/v1/incidents", "", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors", 403},
		{"a check of health", "GET", "/healthz", "", "Sec-Fetch-Site: cross-site", 200},
	} {
		b := newBench(t, nil)
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		r.RemoteAddr, r.Host = "127.0.0.1:4711", "localhost:9781"
		for line := range strings.SplitSeq(c.header, "|") {
			if k, v, ok := strings.Cut(line, ": "); ok {
				r.Header.Set(k, v)
			}
		}
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, w.Code, w.Body, c.want)
		}
		refused := slices.ContainsFunc(b.audits(t), func(a store.Audit) bool { return strings.HasPrefix(a.Outcome, "refused: ") })
		if ran := len(b.fake.jobs) > 0; c.want != 200 && (ran || !refused) {
			t.Errorf("%s: ran %v, in the audit log %v", c.name, ran, refused)
		}
	}
}

// flood answers every query with rows of 1 kB: n of them, then it waits if it must.
type flood struct {
	rows    int
	running atomic.Int32
	most    atomic.Int32
	done    atomic.Int32
	hold    chan struct{} // nil: queries do not wait
}

func (f *flood) Query(ctx context.Context, job *duck.Job) (*duck.Answer, error) {
	return nil, errors.New("not streamed")
}

func (f *flood) Stream(ctx context.Context, job *duck.Job, to duck.Sink) (sum duck.Summary, err error) {
	n := f.running.Add(1)
	defer f.running.Add(-1)
	for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); most = f.most.Load() {
	}
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return sum, ctx.Err()
		}
	}
	if err := to.Columns([]dialect.Column{{Name: "x", Type: "VARCHAR"}}); err != nil {
		return sum, err
	}
	text := `["` + strings.Repeat("1", 1020) + `"]` // an incident's document too
	for range f.rows {
		if err := to.Row(json.RawMessage(text)); err != nil {
			return sum, err
		}
	}
	f.done.Add(1)
	return sum, nil
}

// TestStalledReaders: readers that stop reading answers of 60 MB take no more memory than one caller's
// half of the budget, hold up no other reader, and are disconnected.
func TestStalledReaders(t *testing.T) {
	const readers, budget = 6, 16 << 20
	f := &flood{rows: 60_000}
	b := newBench(t, func(p *Options) {
		p.Asker = f
		p.Config.Query.AtOnce, p.Config.Query.PerCaller, p.Config.Limits.AnswersMB = readers+1, readers+1, budget>>20
	})
	web := httptest.NewServer(b)
	defer web.Close()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const body = `{"sql":"SELECT 1"}`
	for range readers {
		c, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	quelltest.Until(t, "all are being answered", func() bool { return f.running.Load() == readers })
	resp, err := http.Post(web.URL+"/v1/query", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer dialect.Answer
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Rows) != f.rows || answer.Truncated {
		t.Errorf("a reader that reads gets %d rows, %v", len(answer.Rows), err)
	}
	answer = dialect.Answer{}
	if n := b.memory.held(); n > budget {
		t.Errorf("%d bytes are held, more than %d", n, budget)
	}
	// Next to its caller's half of the budget each answer has a few parts of 64 kB.
	if now := heap(); now > before+budget/2+readers<<20 {
		t.Errorf("the heap grew from %d to %d bytes for %d readers that do not read", before, now, readers)
	}
}

// connected returns a connection to a server; both are closed when the test ends.
func connected(t *testing.T, web *httptest.Server) net.Conn {
	t.Helper()
	t.Cleanup(web.Close)
	c, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) // before the server, which waits for it
	return c
}

// TestStalledReaderIsCutOff: a reader that stops is disconnected, its query ends, and nothing
// of the budget stays taken.
func TestStalledReaderIsCutOff(t *testing.T) {
	f := &flood{rows: 60_000}
	b := newBench(t, func(p *Options) { p.Asker, p.Config.Limits.AnswersMB = f, 16 })
	b.patience = time.Millisecond
	c := connected(t, httptest.NewServer(b))
	fmt.Fprint(c, "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n"+`{"sql":"SELECT 1"}`)
	quelltest.Until(t, "the query is over", func() bool { return f.running.Load() == 0 && f.most.Load() == 1 && b.memory.held() == 0 })
	if f.done.Load() != 0 {
		t.Error("it was carried out to its end")
	}
	if text, _ := io.ReadAll(c); strings.HasSuffix(string(text), "0\r\n\r\n") {
		t.Error("the answer looks complete")
	}
}

// failing fails after some rows, when fail is closed.
type failing struct {
	flood
	err  error
	fail chan struct{}
}

func (f *failing) Stream(ctx context.Context, job *duck.Job, to duck.Sink) (duck.Summary, error) {
	sum, err := f.flood.Stream(ctx, job, to)
	<-f.fail
	return sum, errors.Join(err, f.err)
}

// TestErrorsAfterRows: an error has its own status as long as nothing was sent, and afterwards
// the client cannot take the answer for a complete one.
func TestErrorsAfterRows(t *testing.T) {
	for _, rows := range []int{10, 5000} {
		f := &failing{flood: flood{rows: rows}, err: &duck.Error{Kind: duck.Exceeded, Message: "too much"}, fail: make(chan struct{})}
		b := newBench(t, func(p *Options) { p.Asker = f })
		small := rows == 10
		if small {
			close(f.fail)
		}
		web := httptest.NewServer(b)
		resp, err := http.Post(web.URL+"/v1/query", "application/json", strings.NewReader(`{"sql":"SELECT 1"}`))
		if err != nil {
			t.Fatal(err)
		}
		if !small { // the answer has begun
			close(f.fail)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if small && (resp.StatusCode != 422 || err != nil) || !small && err == nil {
			t.Errorf("%d rows: %d, %d bytes, %v", rows, resp.StatusCode, len(text), err)
		}
		web.Close()
		if n := b.memory.held(); n != 0 {
			t.Errorf("%d bytes stay taken", n)
		}
	}
}

// TestOneViewerCannotStopOthers: a viewer that queues long queries delays neither the lists of
// incidents, nor the computation of specs, nor another viewer's queries by more than one query
// of its own.
func TestOneViewerCannotStopOthers(t *testing.T) {
	f := &flood{hold: make(chan struct{})}
	b := newBench(t, func(p *Options) { p.Asker, p.Tokens = f, tokens(t) })
	ended := make(chan int, 100)
	ask := func(token, method, path string) {
		go func() { ended <- b.do("192.0.2.1", "quell", token, method, path, `{"sql":"SELECT 1"}`).Code }()
	}
	for range 1 + maxWaiting {
		ask("viewer-secret", "POST", "/v1/query")
	}
	quelltest.Until(t, "the viewer's queries wait", func() bool {
		b.forUsers.mu.Lock()
		defer b.forUsers.mu.Unlock()
		u := b.forUsers.by["token victor"]
		return u != nil && u.running == 1 && u.waiting == maxWaiting
	})
	if w := b.do("192.0.2.1", "quell", "viewer-secret", "POST", "/v1/query", `{"sql":"SELECT 1"}`); w.Code != http.StatusTooManyRequests {
		t.Errorf("one more waits: %d %s", w.Code, w.Body)
	}
	ask("operator-secret", "POST", "/v1/query")
	ask("viewer-secret", "GET", "/v1/incidents")
	specs := make(chan error, 1)
	go func() {
		release, err := b.forSpecs.take(t.Context(), "")
		if err == nil {
			release()
		}
		specs <- err
	}()
	if err := <-specs; err != nil {
		t.Error(err)
	}
	quelltest.Until(t, "another viewer's query and a list run", func() bool { return f.running.Load() == 3 })
	close(f.hold)
	for range 1 + maxWaiting + 2 {
		if code := <-ended; code != http.StatusOK {
			t.Errorf("%d", code)
		}
	}
}

// TestSlots: turns go round the callers, a caller that has gone keeps no place, and the waiting
// ends.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1, 1, time.Minute)
		first, err := s.take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 10)
		wait := func(ctx context.Context, caller, name string) {
			go func() {
				release, err := s.take(ctx, caller)
				if err != nil {
					order <- name + " gave up"
					return
				}
				order <- name
				<-time.After(time.Second)
				release()
			}()
			synctest.Wait()
		}
		gone, cancel := context.WithCancel(t.Context())
		wait(t.Context(), "a", "a2")
		wait(t.Context(), "a", "a3")
		wait(gone, "b", "b0")
		wait(t.Context(), "b", "b1")
		cancel()
		synctest.Wait()
		first()
		first() // once
		<-time.After(10 * time.Second)
		if got, want := fmt.Sprint(<-order, ", ", <-order, ", ", <-order, ", ", <-order), "b0 gave up, b1, a2, a3"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		synctest.Wait()
		s.mu.Lock()
		if len(s.by) != 0 || s.free != 1 {
			t.Errorf("%d callers and %d slots are left", len(s.by), s.free)
		}
		s.mu.Unlock()
		release, err := s.take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := s.take(t.Context(), "b"); err == nil || time.Since(begun) != time.Minute {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		release()
	})
}

// TestBodiesAreInTheBudget: large requests that come slowly take no more than the budget.
func TestBodiesAreInTheBudget(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Config.Limits.BodyKB = 8 << 10; p.Config.Limits.AnswersMB = 16 })
	web := httptest.NewServer(b)
	defer web.Close()
	slow, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprint(slow, "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n\r\n{")
	quelltest.Until(t, "the first is being read", func() bool { return b.memory.held() == 8_000_000 })
	if w := b.local("POST", "/v1/query", `{"sql":"`+strings.Repeat("x", 1<<20)+`"}`); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %.100s", w.Code, w.Body)
	}
}

// TestHealthTellsNoSecrets: a client without a token learns that something is impaired, and not what: the
// text of a mistake in the file of tokens may be a token.
func TestHealthTellsNoSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	good, err := os.ReadFile("testdata/tokens")
	if err == nil {
		err = os.WriteFile(path, good, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	known, err := LoadTokens(path)
	if err == nil {
		err = os.WriteFile(path, append(good, "oscar the-secret-itself sha256:\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(p *Options) { p.Tokens = known })
	if b.Tokens.refresh() == nil {
		t.Error("the file is good")
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if h := b.local("GET", path, "").Body.String(); strings.Contains(h, "secret") || !strings.Contains(h, "a token is required") {
			t.Errorf("%s", h)
		}
		if h := b.do("192.0.2.1", "quell", "viewer-secret", "GET", path, "").Body.String(); !strings.Contains(h, "the-secret-itself") {
			t.Errorf("a viewer gets %s", h)
		}
	}
}

// TestExpiryIsReported: what expires soon is in the metrics, and a certificate in the health,
// without the names of tokens.
func TestExpiryIsReported(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	if got := certificate.Warnings(b.expiries(), start); len(got) != 1 || got[0] != "token old expired at 2026-11-21T00:00:00Z" {
		t.Errorf("%q", got)
	}
	text := b.do("192.0.2.1", "quell", "viewer-secret", "GET", "/metrics", "").Body.String()
	if want := fmt.Sprintf("quell_server_expiry_timestamp_seconds{what=\"token old\"} %g", float64(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC).Unix())); !strings.Contains(text, want) {
		t.Errorf("%s is not in\n%s", want, text)
	}
	if h := b.local("GET", "/healthz", "").Body.String(); strings.Contains(h, "old") {
		t.Errorf("%s", h)
	}
}

// TestAttackProbesOfOneNetwork: a client that sends too many requests, from an IPv6 network that is also that of
// Kubernetes' probes, does not have the server killed.
func TestAttackProbesOfOneNetwork(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens, p.Config.Limits.PerSecond, p.Config.Limits.Burst = tokens(t), 0.001, 3 })
	last := 0
	for range 4 {
		last = b.do("[2001:db8::bad]", "quell", "", "GET", "/healthz", "").Code
	}
	if last != http.StatusOK {
		t.Errorf("its own: %d", last)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/openapi.json": 429} {
		if w := b.do("[2001:db8::1]", "quell", "", "GET", path, ""); w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}

// absorbing is a bucket that takes everything: what is needed again is in the copies.
type absorbing struct {
	store.Bucket
	fails error // of List
}

func (*absorbing) Put(context.Context, string, string) error    { return nil }
func (*absorbing) Create(context.Context, string, []byte) error { return nil }

func (a *absorbing) List(context.Context, string) ([]store.Entry, error) { return nil, a.fails }

// inBucket makes a bench whose store is in a bucket.
func inBucket(t *testing.T, in store.Bucket) *bench {
	t.Helper()
	return newBench(t, func(p *Options) {
		st, err := store.Open(t.TempDir(), store.Options{Now: p.Now, Bucket: in})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.Close() })
		p.Store = st
	})
}

// TestAServerCutOffSaysSo: a server that cannot read any more what others have stored answers from what it has, and
// says that this is old.
func TestAServerCutOffSaysSo(t *testing.T) {
	in := &absorbing{}
	b := inBucket(t, in)
	for _, in.fails = range []error{nil, errors.New("no storage"), nil} {
		if err := b.Store.Refresh(); !errors.Is(err, in.fails) {
			t.Fatal(err)
		}
		w := b.local("GET", "/healthz", "")
		if w.Code != 200 || strings.Contains(w.Body.String(), "no storage") != (in.fails != nil) {
			t.Errorf("the storage says %v: %d %s", in.fails, w.Code, w.Body)
		}
	}
}

// withoutCheckpoints is a bucket that takes commits and no checkpoint.
type withoutCheckpoints struct {
	absorbing
	log []store.Entry
}

func (b *withoutCheckpoints) Create(_ context.Context, name string, _ []byte) error {
	if strings.Contains(name, "checkpoint") {
		return errors.New("no storage")
	}
	b.log = append(b.log, store.Entry{Name: name})
	return nil
}

func (b *withoutCheckpoints) List(context.Context, string) ([]store.Entry, error) { return b.log, nil }

// TestACheckpointThatFailsStopsNothing: it is repeated 256 commits later. A server that is not ready until then, and is
// not restarted, would get no requests.
func TestACheckpointThatFailsStopsNothing(t *testing.T) {
	b := inBucket(t, &withoutCheckpoints{})
	for range 256 {
		b.Store.Add(&store.Batch{Audit: []store.Audit{{At: start.UnixMilli(), Who: "anna"}}})
		if err := b.Store.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if w := b.local("GET", path, ""); w.Code != 200 || !strings.Contains(w.Body.String(), "no storage") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestAQueryFillsNoDisk: a query over more of a bucket than there may be copies is refused before it fetches them.
func TestAQueryFillsNoDisk(t *testing.T) {
	b := inBucket(t, &absorbing{})
	b.Store.Add(&store.Batch{Audit: []store.Audit{{At: start.UnixMilli(), Who: "anna"}}, Incidents: []store.Incident{{Updated: start.UnixMilli(), Doc: "{}"}},
		Samples: []sample.Sample{{TS: sample.At(start), Machine: "m"}}})
	if err := b.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		most int
		sql  string
		want int
	}{{64, "SELECT who FROM audit", 200}, {0, "SELECT who FROM audit", 422}, {0, "SELECT job FROM specs", 200},
		// Columns whose names have that of a table in them do not name it.
		{0, "SELECT num_samples FROM spec_history", 200}, {0, "SELECT count(*) FROM Samples", 422}, {0, "SELECT doc FROM incident_history", 422}, {0, "DESCRIBE samples", 200}} {
		b.Config.Store.S3.CopiesMB = c.most
		if w := b.local("POST", "/v1/query", `{"sql":"`+c.sql+`"}`); w.Code != c.want || c.want == 422 && !strings.Contains(w.Body.String(), "copies_mb") {
			t.Errorf("%s with %d MB: %d %s", c.sql, c.most, w.Code, w.Body)
		}
	}
	sn := b.Store.Snapshot(0, 0)
	defer sn.Close()
	if _, err := b.askAll(t.Context(), sn, duck.Job{SQL: "SELECT who FROM audit"}); err != nil {
		t.Errorf("the server's own query: %v", err)
	}
}
