package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestMain makes the test binary the child for queries that DuckDB answers.
func TestMain(m *testing.M) {
	quelltest.Command("query-child", func(dir string) error { return duck.Child(dir, os.Stdin, os.Stdout) })
	quelltest.Main(m)
}

// TestWhoMayDoWhat tests every route with every kind of caller.
func TestWhoMayDoWhat(t *testing.T) {
	open, shut := newBench(t, nil), newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	for _, rt := range table() {
		if rt.path == "/v1/events" {
			continue // the stream does not end; see TestEvents
		}
		for _, c := range []struct {
			name, from, host, token string
			server                  *bench
			scope                   Scope
		}{
			{"loopback", "127.0.0.1", "localhost", "", open, Viewer},
			{"loopback, IPv6", "::1", "[::1]:9781", "", open, Viewer},
			{"loopback, by a name of the asker's", "127.0.0.1", "evil.example", "", open, Public},
			{"elsewhere", "192.0.2.1", "localhost", "", open, Public},
			{"loopback where tokens are needed", "127.0.0.1", "localhost", "", shut, Public},
			{"an unknown token", "127.0.0.1", "localhost", "no-such-token", shut, Public},
			{"an expired token", "192.0.2.1", "quell", "expired-secret", shut, Public},
			{"a viewer", "192.0.2.1", "quell", "viewer-secret", shut, Viewer},
			{"an operator", "192.0.2.1", "quell", "operator-secret", shut, Operator},
		} {
			from := c.from
			if strings.Contains(from, ":") {
				from = "[" + from + "]"
			}
			w := c.server.do(from, c.host, c.token, rt.method, rt.path, "{}")
			refused := w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden
			if refused == c.scope.allows(rt.scope) {
				t.Errorf("%s: %s %s: %d", c.name, rt.method, rt.path, w.Code)
			}
			if w.Code >= 500 && w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s: %s %s: %d %s", c.name, rt.method, rt.path, w.Code, w.Body)
			}
			if refused && !strings.Contains(w.Body.String(), `"remedy"`) {
				t.Errorf("%s: %s %s: no remedy in %s", c.name, rt.method, rt.path, w.Body)
			}
		}
	}
	var refused []string
	for _, a := range shut.audits(t) {
		if strings.Contains(a.Outcome, "refused") {
			refused = append(refused, a.Who+" "+a.Outcome)
		}
	}
	for _, want := range []string{"victor refused: the token's scope is viewer", "old refused: the token expired on 2026-11-20", " refused: unknown token", " refused: a token is required"} {
		if !slices.Contains(refused, want) {
			t.Errorf("%q is not in the audit log: %q", want, refused)
		}
	}
}

// TestHowToGetAToken: what a refused caller is told to do helps in its case: it has no token, one that ended, one that
// may not act, or the server knows none.
func TestHowToGetAToken(t *testing.T) {
	open, shut := newBench(t, nil), newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	for _, c := range []struct {
		server              *bench
		token, path         string
		message, what, lack string
	}{
		{shut, "", "/v1/machines", "a token is required", "set QUELL_TOKEN", "tokens_file"},
		{shut, "expired-secret", "/v1/machines", "expired on 2026-11-20", "another token: `quell-server token NAME viewer`", "QUELL_TOKEN"},
		{shut, "viewer-secret", "/v1/commands", "scope operator is required, the caller has viewer", "another token: `quell-server token NAME operator`", "tokens_file"},
		{open, "", "/v1/commands", "scope operator is required, the caller has viewer", "tokens_file", "QUELL_TOKEN"},
		{open, "viewer-secret", "/v1/machines", "unknown token", "tokens_file", "QUELL_TOKEN"},
	} {
		method := map[bool]string{true: "POST", false: "GET"}[c.path == "/v1/commands"]
		got := c.server.do("127.0.0.1", "localhost", c.token, method, c.path, "{}").Body.String()
		if !strings.Contains(got, c.message) || !strings.Contains(got, c.what) || strings.Contains(got, c.lack) {
			t.Errorf("%q: %s %s: %s", c.token, method, c.path, got)
		}
	}
}

func TestQueries(t *testing.T) {
	b := newBench(t, nil)
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		switch {
		case strings.Contains(job.SQL, "DROP"):
			return nil, &duck.Error{Kind: duck.Refused, Message: "only SELECT is allowed"}
		case strings.Contains(job.SQL, "huge"):
			return nil, &duck.Error{Kind: duck.Exceeded, Message: "too much"}
		case strings.Contains(job.SQL, "broken"):
			return nil, &duck.Error{Kind: duck.Broken, Message: "the store"}
		}
		return &duck.Answer{Answer: dialect.Answer{Columns: []dialect.Column{{Name: "a", Type: "INTEGER"}}, Rows: []json.RawMessage{json.RawMessage("[1]")}}}, nil
	}
	for _, c := range []struct {
		body, want string
		code       int
	}{
		{`{"sql":"SELECT 1 AS a"}`, `{"columns":[{"name":"a","type":"INTEGER"}],"rows":[[1]]}`, 200},
		{`{"sql":"DROP TABLE x"}`, "one SELECT", 400},
		{`{"sql":"huge"}`, "reduce the query", 422},
		{`{"sql":"broken"}`, "server's log", 500},
		{`{}`, "want sql", 400},
		{`{"sql":"SELECT 1","canned":"worst-machines"}`, "want sql", 400},
		{`{"sql":"SELECT 1","since":"yesterday"}`, "since", 400},
		{`{"sql":"SELECT 1","since":"1h","until":"24h"}`, "until 24h is before since 1h", 400},
		{`{"canned":"nothing"}`, "worst-antagonists", 400},
		{`{"canned":"worst-antagonists"}`, "needs the parameter job", 400},
		{`{"canned":"worst-machines","params":{"x":"1"}}`, "no parameter", 400},
		{`{"canned":"worst-machines"}`, `[[1]]`, 200},
		{`{"sql":`, "read the request", 400},
		{`{"sql":"SELECT 1"}{}`, "more than one", 400},
		{`{"sequel":"SELECT 1"}`, "unknown field", 400},
		{`{"sql":"` + strings.Repeat("x", 2<<20) + `"}`, "send a smaller request", 413},
	} {
		w := b.local("POST", "/v1/query", c.body)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%.60s: %d %.200s; want %d %s", c.body, w.Code, w.Body, c.code, c.want)
		}
	}
	b.local("POST", "/v1/query", `{"canned":"worst-antagonists","params":{"job":"it's"},"since":"24h","until":"2026-11-21"}`)
	last := b.fake.jobs[len(b.fake.jobs)-1]
	if !strings.Contains(last.SQL, "victim_job = 'it''s'") || last.From != sample.At(start.Add(-24*time.Hour)) || last.To != sample.At(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("asked %+v", last)
	}
	if c := b.Config.Query; last.Limits.Time != c.Time || last.Limits.MemoryMB != c.MemoryMB || last.Limits.Rows != c.Rows {
		t.Errorf("limits %+v", last.Limits)
	}
}

func TestOperatorsCommandsAreAudited(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	ask := func(body string) *httptest.ResponseRecorder {
		return b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/commands", body)
	}
	b.fake.replies = map[string]*wire.Reply{"m1": {Ok: true, Message: "capped", Cap: "cap-1"}}
	w := ask(`{"machine":"m1","why":"ticket 1","cap":{"task":"/encode","rate":0.1,"for":"5m"}}`)
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"cap":"cap-1"`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if c := b.fake.decided[0]; c.Who != "olga" || c.Why != "ticket 1" || c.Cap.Task != "/encode" || c.At != sample.At(start) || c.Until != c.At.Add(5*time.Minute) {
		t.Errorf("decided %+v", c)
	}
	b.fake.replies["m1"] = &wire.Reply{Message: "it may never be capped"}
	if w := ask(`{"machine":"m1","why":"x","uncap":{"task":"/encode"}}`); w.Code != 409 || len(b.fake.standing["m1"]) != 0 {
		t.Errorf("refused by the machine: %d, and %+v stand", w.Code, b.fake.standing["m1"])
	}
	b.fake.replies = nil
	if w := ask(`{"machine":"m1","why":"x","enforcement":{"mode":"off"}}`); w.Code != 200 || !strings.Contains(w.Body.String(), `"silent":["m1"]`) || len(b.fake.standing["m1"]) != 1 {
		t.Errorf("a machine that is not there now: %d %s", w.Code, w.Body)
	}
	if w := ask(`{"machine":"m2","why":"x","enforcement":{"mode":"off"}}`); w.Code != 404 {
		t.Errorf("a machine that was never there: %d", w.Code)
	}
	for _, body := range []string{
		`{"machine":"m1","cap":{"task":"/encode","rate":0.1,"for":"5m"}}`,
		`{"machine":"m1","why":"x"}`, `{"why":"x","uncap":{"task":"/a"}}`, `{"machine":"m1","why":"x","uncap":{"task":""}}`,
		`{"machine":"m1","why":"x","uncap":{"task":"/a"},"protect":{"task":"/a"}}`,
		`{"machine":"m1","why":"x","cap":{"task":"/a","rate":-1,"for":"5m"}}`, `{"machine":"m1","why":"x","cap":{"task":"/a","rate":1,"for":"5 minutes"}}`,
		`{"machine":"m1","why":"x","enforcement":{"mode":"maybe"}}`,
	} {
		if w := ask(body); w.Code != 400 {
			t.Errorf("%s: %d", body, w.Code)
		}
	}
	if len(b.fake.decided) != 3 {
		t.Errorf("%d decisions were made, want 3", len(b.fake.decided))
	}
	var got []string
	for _, a := range b.audits(t) {
		got = append(got, strings.Join([]string{a.Who, a.From, a.Scope, a.What, a.Target, a.Why, a.Outcome}, "|"))
	}
	for _, want := range []string{"olga|192.0.2.1|operator|POST /v1/commands|m1 cap /encode to 0.1 CPU-s/s for 5m|ticket 1|done",
		"olga|192.0.2.1|operator|POST /v1/commands|m1 uncap /encode|x|it may never be capped",
		"olga|192.0.2.1|operator|POST /v1/commands|m1 enforcement off|x|done on 0 machines; 1 get it when they come back: m1",
		`olga|192.0.2.1|operator|POST /v1/commands|m2 enforcement off|x|the machine "m2" was never heard of`} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing in\n%s", want, strings.Join(got, "\n"))
		}
	}
}

// Changed specs get a version and are announced; unchanged ones are not.
func TestSpecsGetVersions(t *testing.T) {
	l := &learner{}
	b := newBench(t, func(p *Options) { p.Learner = l })
	computed := func(job, signal string, mean float64) spec.Computed {
		return spec.Computed{Spec: spec.Spec{Key: spec.Key{Job: sample.JobName(job), Platform: "p", Signal: sample.SignalName(signal), Variant: "v"},
			State: spec.Ready, Tasks: 5, Samples: 500, CPUMean: 1.5, Mean: mean, StdDev: 0.1}, Last: 1795262400000}
	}
	b.fake.answer = func(*duck.Job) (*duck.Answer, error) { return &duck.Answer{}, nil }
	ctx := t.Context()
	if err := b.loadSpecs(ctx); err != nil {
		t.Fatal(err)
	}
	revision := uint64(0)
	learn := func() {
		t.Helper()
		for _, m := range b.fake.specs {
			revision = max(revision, m.Revision)
		}
		b.fake.specs = nil
		if err := b.learn(ctx); err != nil {
			t.Fatal(err)
		}
	}
	l.learnt = []spec.Computed{computed("web", "cpi", 1.8), computed("web", "runq", 0.1), computed("db", "cpi", 2)}
	learn()
	if len(b.fake.specs) != 2 {
		t.Errorf("%d messages, want one for each job", len(b.fake.specs))
	}
	learn()
	if len(b.fake.specs) != 0 {
		t.Errorf("nothing changed, and %d messages went out", len(b.fake.specs))
	}
	l.learnt = []spec.Computed{computed("web", "cpi", 1.9), computed("web", "runq", 0.1), computed("db", "cpi", 2)}
	learn()
	if len(b.fake.specs) != 1 || b.fake.specs[0].Job != "web" || b.fake.specs[0].Revision <= revision || len(b.fake.specs[0].Specs) != 2 {
		t.Errorf("got %v, want web's two with a higher revision", b.fake.specs)
	}
	var views []cluster.Spec
	w := b.local("GET", "/v1/specs?job=web", "")
	if err := json.Unmarshal(w.Body.Bytes(), &views); err != nil || len(views) != 2 || views[0].Version != 2 || views[0].Mean != 1.9 || views[1].Version != 1 {
		t.Errorf("%v %s", err, w.Body)
	}
	if kept := rowsOf[store.Spec](t, b.store, store.Specs); len(kept) != 4 {
		t.Errorf("%d versions are kept, want 4", len(kept))
	}
	b.fake.answer = func(*duck.Job) (*duck.Answer, error) { return nil, errors.New("no memory") }
	if b.learn(ctx) == nil {
		t.Error("a computation that failed is not told of")
	}
	if w := b.local("GET", "/healthz", ""); w.Code != 200 || !strings.Contains(w.Body.String(), "no memory") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A HEAD of the endless stream ends: the connection is free for the next request.
func TestHeadOfEventsEnds(t *testing.T) {
	b := newBench(t, nil)
	web := httptest.NewServer(b)
	defer web.Close()
	defer b.hub.close()
	one := http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: 4 * time.Minute}
	defer one.CloseIdleConnections()
	for _, ask := range []string{"HEAD /v1/events", "GET /healthz"} {
		method, path, _ := strings.Cut(ask, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, web.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := one.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", ask, resp.Status, err)
		}
	}
	if n := b.hub.count(); n != 0 {
		t.Errorf("%d follow", n)
	}
}

func TestEvents(t *testing.T) {
	b := newBench(t, nil)
	web := httptest.NewServer(b)
	defer web.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", web.URL+"/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	quelltest.Until(t, "a client of the event stream", func() bool { return b.hub.count() == 1 })
	b.Add(&store.Batch{Source: store.Source{Machine: "m1"}, N: 1, Incidents: []store.Incident{{Machine: "m1", ID: "i7", Updated: 1}}})
	b.Add(&store.Batch{Source: store.Source{Machine: "m1"}, N: 1, Incidents: []store.Incident{{Machine: "m1", ID: "again", Updated: 1}}})
	b.Add(&store.Batch{Actions: []store.Action{{What: "cap"}}})
	lines := bufio.NewScanner(resp.Body)
	var got []string
	for len(got) < 2 && lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			lines.Scan()
			got = append(got, name+" "+lines.Text())
		}
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], "incident data: ") || !strings.Contains(got[0], `"id":"i7"`) || !strings.HasPrefix(got[1], "action ") {
		t.Errorf("got %q", got)
	}
	b.hub.close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the stream did not end well: %v", err)
	}
}

// A follower that is too slow is told how many events it missed.
func TestSlowFollowersMiss(t *testing.T) {
	h := newHub(2, 1)
	c, f, why := h.join("vera")
	if why != nil {
		t.Fatal(why)
	}
	if _, _, why := h.join("vera"); why == nil {
		t.Error("a second stream of one caller, who may have one")
	}
	other, _, why := h.join("victor")
	if why != nil {
		t.Error(why)
	}
	if _, _, why := h.join("viola"); why == nil {
		t.Error("a third stream, with room for two")
	}
	h.leave(other)
	for range behind + 4 {
		h.publish("x", 1)
	}
	h.publish("x", strings.Repeat("x", maxEvent))
	if n := f.missed.Swap(0); n != 5 || len(c) != behind {
		t.Errorf("missed %d, has %d", n, len(c))
	}
	h.leave(c)
	h.publish("x", 1)
	if h.count() != 0 {
		t.Error("still there")
	}
}

// The document describes exactly what is served.
func TestOpenAPI(t *testing.T) {
	b := newBench(t, nil)
	w := b.local("GET", "/openapi.json", "")
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Responses   map[string]any
			RequestBody any
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("%v %.100s", err, w.Body)
	}
	n := 0
	ids := map[string]bool{}
	for path, item := range doc.Paths {
		for method, op := range item {
			n++
			if ids[op.OperationID] {
				t.Errorf("%s twice", op.OperationID)
			}
			ids[op.OperationID] = true
			if path == "/v1/events" {
				continue
			}
			w := b.local(strings.ToUpper(method), path, "{}")
			if w.Code == http.StatusNotFound || w.Code == http.StatusMethodNotAllowed {
				t.Errorf("%s %s is not served", method, path)
			}
			if _, ok := op.Responses[fmt.Sprint(w.Code)]; !ok {
				t.Errorf("%s %s: %d is not documented", method, path, w.Code)
			}
			if (method == "post") != (op.RequestBody != nil) {
				t.Errorf("%s %s: body", method, path)
			}
		}
	}
	if n != len(table()) {
		t.Errorf("%d operations, %d routes", n, len(table()))
	}
	if w := b.local("GET", "/nothing", ""); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "remedy") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestMetrics(t *testing.T) {
	b := newBench(t, nil)
	b.local("GET", "/healthz", "")
	b.Add(&store.Batch{Samples: []sample.Sample{{TS: sample.At(start), Task: "/a"}}})
	text := b.local("GET", "/metrics", "").Body.String()
	for _, want := range []string{"quell_server_samples_total 1", `quell_server_requests_total{path="/healthz",status="200"} 1`, "quell_server_pending_rows 1", "quell_server_specs 0"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
}

// A server that is not ready must not report that it is.
func TestReadiness(t *testing.T) {
	b := newBench(t, nil)
	b.ready.Store(false)
	if h, r := b.local("GET", "/healthz", ""), b.local("GET", "/readyz", ""); h.Code != 200 || r.Code != 503 {
		t.Errorf("healthy %d, ready %d; want 200, 503", h.Code, r.Code)
	}
}

// A server is unhealthy, and restarted by Kubernetes, only if that helps: not while the bus is away.
func TestHealthIsWhatARestartMends(t *testing.T) {
	var away error
	b := newBench(t, func(p *Options) { p.Check = func() error { return away } })
	for _, c := range []struct {
		away           error
		healthy, ready int
	}{
		{nil, 200, 200},
		{errors.New("no servers available"), 200, 503},
		{fmt.Errorf("free disk space and %w", ErrRestart), 503, 503},
	} {
		away = c.away
		h, r := b.local("GET", "/healthz", ""), b.local("GET", "/readyz", "")
		if h.Code != c.healthy || r.Code != c.ready || away != nil && !strings.Contains(h.Body.String(), away.Error()) {
			t.Errorf("%v: healthy %d, ready %d: %s", away, h.Code, r.Code, h.Body)
		}
	}
}

// FuzzAPI sends arbitrary requests to every route: no answer is a server error.
func FuzzAPI(f *testing.F) {
	b := newBench(f, func(p *Options) { p.Config.Limits.PerSecond, p.Config.Limits.Burst = 1e9, 1e9; p.Tokens = tokens(f) })
	b.fake.replies = map[string]*wire.Reply{"m1": {Ok: true}}
	routes := table()
	for i := range routes {
		f.Add(i, "since=24h&until=2026-11-21&job=a%27b&open=true", `{"sql":"SELECT 1","machine":"m","why":"x","uncap":{"task":"/a"}}`)
	}
	f.Fuzz(func(t *testing.T, n int, query, body string) {
		rt := routes[max(0, n)%len(routes)]
		if rt.path == "/v1/events" {
			return
		}
		r := httptest.NewRequest(rt.method, rt.path, bytes.NewReader([]byte(body)))
		r.URL.RawQuery = query
		r.Header.Set("Authorization", "Bearer operator-secret")
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Errorf("%s %s?%s %s: %d %s", rt.method, rt.path, query, body, w.Code, w.Body)
		}
		if rt.media == "" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %s: invalid JSON: %s", rt.method, rt.path, w.Body)
		}
	})
}

// rowsOf reads a table of a store.
func rowsOf[T any](t testing.TB, s *store.Store, table string) []T {
	t.Helper()
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	var all []T
	for _, file := range sn.Files(table) {
		rows, err := parquet.ReadFile[T](file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rows...)
	}
	return all
}

// watcher notes the incidents that it is told of.
type watcher struct{ seen []string }

func (w *watcher) Incident(r *incident.Record) { w.seen = append(w.seen, r.Machine+" "+r.ID) }

// Forget implements the method of a Watcher that wants it.
func (w *watcher) Forget() { w.seen = append(w.seen, "forget") }

// once gives a lease for one term, which has ended already.
type once struct{ over chan struct{} }

func (o *once) RunWithLease(ctx context.Context, _, _ string, do func(context.Context)) error {
	term, cancel := context.WithCancel(ctx)
	cancel()
	do(term)
	close(o.over)
	<-ctx.Done()
	return nil
}

// TestWatchersForget: a server that leads no more tells its watchers.
func TestWatchersForget(t *testing.T) {
	w, o := &watcher{}, &once{make(chan struct{})}
	b := newBench(t, func(p *Options) { p.Watchers, p.Holder = []Watcher{w}, o })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.campaign(ctx) }()
	<-o.over
	cancel()
	<-ended
	if len(w.seen) != 1 || w.seen[0] != "forget" {
		t.Errorf("told of %q", w.seen)
	}
}

// Watchers are told of an incident once, however often its message comes.
func TestWatchersAreToldOfIncidents(t *testing.T) {
	w := &watcher{}
	b := newBench(t, func(p *Options) { p.Watchers = []Watcher{w} })
	batch := store.Batch{Source: store.Source{Stream: recordsStream, Machine: "m1"}, N: 1}
	if err := batch.AddIncident(&incident.Record{Incident: plan.Incident{ID: "i7", Machine: "m1", Updated: sample.At(start)}}); err != nil {
		t.Fatal(err)
	}
	if again := batch; !b.Add(&batch) || b.Add(&again) {
		t.Error("a batch is taken once")
	}
	if len(w.seen) != 1 || w.seen[0] != "m1 i7" {
		t.Errorf("told of %q", w.seen)
	}
}
