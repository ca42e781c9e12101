package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/digest"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// learner returns given specs and records its arguments.
type learner struct {
	windows []store.Window
	learnt  []spec.Computed
	during  func() // called in a computation; nil: nothing
}

func (l *learner) Learn(_ context.Context, _ *store.Snapshot, _ sample.Millis, windows []store.Window, _ spec.Params, now sample.Millis) ([]spec.Computed, error) {
	if l.during != nil {
		l.during()
	}
	l.windows = windows
	for i := range l.learnt {
		l.learnt[i].Updated = now
	}
	return l.learnt, nil
}

// leaving is a learner whose client leaves during the computation.
type leaving struct {
	leave context.CancelFunc
	ended error
}

func (l *leaving) Learn(ctx context.Context, _ *store.Snapshot, _ sample.Millis, _ []store.Window, _ spec.Params, _ sample.Millis) ([]spec.Computed, error) {
	l.leave()
	l.ended = ctx.Err()
	return nil, ctx.Err()
}

// TestAComputationGoesOn: a client that waits for two minutes and leaves does not end the computation that
// takes back what a machine has taught. The server's end does.
func TestAComputationGoesOn(t *testing.T) {
	for path, body := range map[string]string{"/v1/specs/compute": `{"why":"r"}`, "/v1/specs/revoke": `{"machine":"m1","since":"48h","why":"r"}`} {
		ctx, leave := context.WithCancel(t.Context())
		l := &leaving{leave: leave}
		b := newBench(t, func(p *Options) { p.Tokens, p.Learner = tokens(t), l })
		b.specs.by = map[spec.Key]store.Spec{}
		r := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer operator-secret")
		w := httptest.NewRecorder()
		if b.ServeHTTP(w, r); w.Code != 200 || l.ended != nil {
			t.Errorf("%s: %d %s, and the computation ended with %v", path, w.Code, w.Body, l.ended)
		}
		last, cancel := b.lasting(t.Context())
		close(b.stops)
		<-last.Done()
		cancel()
	}
}

// TestVersionsOfASpec: each state of a spec is a version with all its fields, and earlier
// versions stay in the history.
func TestVersionsOfASpec(t *testing.T) {
	l := &learner{}
	b := newBench(t, func(p *Options) { p.Learner = l })
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		switch {
		case strings.Contains(job.SQL, "FROM revocations"):
			return &duck.Answer{}, nil
		case !strings.Contains(job.SQL, "FROM incidents WHERE NOT follows"):
			t.Errorf("asked %s", job.SQL)
		}
		return &duck.Answer{Answer: dialect.Answer{Rows: []json.RawMessage{json.RawMessage(`["m1","/a","runq",100,200,"i1",false]`)}}}, nil
	}
	b.specs.by = map[spec.Key]store.Spec{}
	b.Add(&store.Batch{Source: store.Source{Stream: samplesStream, Machine: "m9"}, N: 1}) // its name is known
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	key := spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "v"}
	unfit := spec.Computed{Spec: spec.Spec{Key: key, State: spec.Insufficient, Samples: 10, Tasks: 1, Mean: 1, StdDev: 0.5}, Last: 5000}
	one := unfit
	one.State, one.Machines, one.OutCount, one.Out = spec.Learning, 4, 1, []uint64{spec.HashMachine("m9")}
	ready := one
	ready.State, ready.Samples, ready.P50, ready.P90, ready.P99, ready.Since = spec.Ready, 600, 1.1, 1.2, 1.3, 4000
	ready.SelfSamples, ready.SelfMean, ready.SelfStdDev, ready.Sigmas = 500, 0.3, 0.01, 2.4
	ready.Usage = []spec.UsageCost{{From: 0.5, Samples: 600, Mean: 1, StdDev: 0.5}}
	stale := ready
	stale.State = spec.Stale
	for _, v := range []spec.Computed{unfit, one, ready, ready, stale} {
		l.learnt = []spec.Computed{v}
		if err := b.learn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]store.Window{{Machine: "m1", Task: "/a", Signal: "runq", From: 100, To: 200}}, l.windows); diff != "" {
		t.Error(diff)
	}
	if m := b.fake.specs[len(b.fake.specs)-1].List(); len(m) != 1 || m[0].SelfSamples != 500 || m[0].SelfMean != 0.3 || m[0].SelfStdDev != 0.01 || m[0].Sigmas != 2.4 {
		t.Errorf("agents are told %+v", m)
	}
	at := start.UnixMilli()
	base := store.Spec{At: at, Version: 1, Job: "web", Platform: "p", Signal: "cpi", Variant: "v", State: "learning", Tasks: 1, Samples: 10, Mean: 1, StdDev: 0.5, Last: 5000,
		Machines: 4, MachinesOut: 1, LeftOut: `["m9"]`}
	second := base
	second.Version, second.State, second.Samples, second.P50, second.P90, second.P99, second.Since = 2, "ready", 600, 1.1, 1.2, 1.3, 4000
	second.SelfSamples, second.SelfMean, second.SelfStdDev, second.Sigmas = 500, 0.3, 0.01, 2.4
	second.Usage = `[{"from":0.5,"samples":600,"mean":1,"stddev":0.5}]`
	third := second
	third.Version, third.State = 3, "stale"
	if diff := cmp.Diff([]store.Spec{base, second, third}, rowsOf[store.Spec](t, b.store, store.Specs)); diff != "" {
		t.Error(diff)
	}
}

// Failed announcements are repeated later, even if the spec has not changed since.
func TestSpecsAreMadeKnownInTheEnd(t *testing.T) {
	b := newBench(t, nil)
	b.specs.by = map[spec.Key]store.Spec{}
	all := func() []store.Spec {
		return []store.Spec{{Job: "web", Platform: "p", Signal: "cpi", State: "ready", Mean: 1}, {Job: "db", Platform: "p", Signal: "cpi", State: "ready", Mean: 2}}
	}
	gone := errors.New("not connected")
	b.fake.put = func(*wire.Specs) error { return gone }
	if err := b.keepSpecs(t.Context(), all()); !errors.Is(err, gone) {
		t.Fatalf("kept, %v", err)
	}
	b.fake.put = nil
	for range 2 { // once
		if err := b.keepSpecs(t.Context(), all()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.fake.specs); n != 2 {
		t.Errorf("%d messages, want one for each job", n)
	}
	if kept := rowsOf[store.Spec](t, b.store, store.Specs); len(kept) != 2 {
		t.Errorf("%d versions, want 2", len(kept))
	}
}

// Two concurrent computations announce a spec's versions in order.
func TestVersionsAreMadeKnownInOrder(t *testing.T) {
	b := newBench(t, nil)
	b.specs.by = map[spec.Key]store.Spec{}
	keep := func(mean float64) error {
		return b.keepSpecs(t.Context(), []store.Spec{{Job: "web", Platform: "p", Signal: "cpi", State: "ready", Mean: mean}})
	}
	second := make(chan error, 1)
	b.fake.put = func(m *wire.Specs) error {
		if first := m.Specs[0].Mean == 1; first { // it is slow, and the next computation has ended
			go func() { second <- keep(2) }()
			select {
			case err := <-second:
				second <- err
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	}
	if err := errors.Join(keep(1), <-second); err != nil {
		t.Fatal(err)
	}
	if all := b.fake.specs; len(all) != 2 || all[0].Specs[0].Mean != 1 || all[0].Revision >= all[1].Revision {
		t.Errorf("made known: %v", all)
	}
}

// TestComputationsDoNotOverlap: a computation requested during another waits for it: both
// would use one folder of digests.
func TestComputationsDoNotOverlap(t *testing.T) {
	l := &learner{}
	b := newBench(t, func(p *Options) { p.Learner = l })
	b.specs.by = map[spec.Key]store.Spec{}
	var running, most, turns atomic.Int64
	second := make(chan error, 1)
	l.during = func() {
		most.Store(max(most.Load(), running.Add(1)))
		if turns.Add(1) == 1 {
			go func() { second <- b.learn(t.Context()) }()
			select {
			case err := <-second:
				second <- err
			case <-time.After(50 * time.Millisecond):
			}
		}
		running.Add(-1)
	}
	if err := errors.Join(b.learn(t.Context()), <-second); err != nil {
		t.Fatal(err)
	}
	if most.Load() != 1 || turns.Load() != 2 {
		t.Errorf("%d computations, %d at once", turns.Load(), most.Load())
	}
}

// TestComputationsAreShared: those that were requested while one ran, however many, are one, which has begun
// after them. It is repeated if it failed.
func TestComputationsAreShared(t *testing.T) {
	l, n := &learner{}, 0
	l.during = func() { n++ }
	b := newBench(t, func(p *Options) { p.Learner = l })
	b.specs.by = map[spec.Key]store.Spec{}
	learn := func(had uint64, want int) {
		t.Helper()
		if err := b.learnSince(t.Context(), had); err != nil || n != want {
			t.Errorf("%d computations, %v, want %d", n, err, want)
		}
	}
	for range 3 {
		learn(0, 1)
	}
	learn(1, 2)
	b.specs.worked = false
	learn(1, 3)
	learn(1, 3)
}

// TestOneMessageHoldsBackNoOther: specs that cannot be announced, such as those of a job whose
// name the bus refuses, do not keep back those of other jobs. Without a connection not every
// message is tried.
func TestOneMessageHoldsBackNoOther(t *testing.T) {
	b := newBench(t, nil)
	b.specs.by = map[spec.Key]store.Spec{}
	var all []store.Spec
	for i := range 100 {
		all = append(all, store.Spec{Job: fmt.Sprint("job-", i), Platform: "p", Signal: "cpi", State: "ready", Samples: 9, Mean: 1})
	}
	refused, tried := errors.New("refused"), 0
	b.fake.put = func(m *wire.Specs) error {
		if tried++; m.Job == "job-7" || m.Job == "job-8" {
			return refused
		}
		return nil
	}
	if err := b.keepSpecs(t.Context(), all); !errors.Is(err, refused) || !strings.Contains(err.Error(), "2 of 100") {
		t.Errorf("got %v", err)
	}
	if len(b.fake.specs) != 98 || tried != 100 {
		t.Errorf("%d of 100 messages were announced, want all but the two that are refused", len(b.fake.specs))
	}
	b.fake.put = func(*wire.Specs) error { tried++; return refused }
	tried = 0
	for i := range all {
		all[i].Mean = 2
	}
	if err := b.keepSpecs(t.Context(), all); err == nil || tried != maxFailed {
		t.Errorf("%d messages were tried without a connection, want %d; %v", tried, maxFailed, err)
	}
}

// TestMadeUpJobsHideNoSpecs: a machine that makes up jobs does not keep others from reading specs. A list
// without them says that it does not have all.
func TestMadeUpJobsHideNoSpecs(t *testing.T) {
	b := newBench(t, nil)
	b.specs.by = map[spec.Key]store.Spec{}
	for i := range 150_000 {
		job := fmt.Sprint("made-up-", i)
		b.specs.by[spec.Key{Job: sample.JobName(job)}] = store.Spec{Job: job, State: spec.Insufficient.String()}
	}
	b.specs.by[spec.Key{Job: "web"}] = store.Spec{Job: "web", State: spec.Ready.String(), Version: 1}
	var views []cluster.Spec
	cut := func(w *httptest.ResponseRecorder) bool {
		return w.Result().Trailer.Get(cluster.TruncatedTrailer) == "true"
	}
	if w := b.local("GET", "/v1/specs", ""); !cut(w) || json.Unmarshal(w.Body.Bytes(), &views) != nil || len(views) != 1 || views[0].Job != "web" {
		t.Errorf("%d, %d specs: %.200s", w.Code, len(views), w.Body)
	}
	if w := b.local("GET", "/v1/specs?job=made-up-7", ""); cut(w) || json.Unmarshal(w.Body.Bytes(), &views) != nil || len(views) != 1 || views[0].Job != "made-up-7" {
		t.Errorf("%d, %d specs: %.200s", w.Code, len(views), w.Body)
	}
}

// TestSpecsArePruned: what no samples teach any more is withdrawn from the agents and
// forgotten, and what cannot become a spec is not stored at all.
func TestSpecsArePruned(t *testing.T) {
	l := &learner{}
	b := newBench(t, func(p *Options) { p.Learner = l })
	b.specs.by = map[spec.Key]store.Spec{}
	of := func(job string, state spec.State) spec.Computed {
		return spec.Computed{Spec: spec.Spec{Key: spec.Key{Job: sample.JobName(job), Platform: "p", Signal: sample.CPI}, State: state, Samples: 10, Mean: 1}}
	}
	learn := func(all ...spec.Computed) {
		t.Helper()
		l.learnt = all
		if err := b.learn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var all []spec.Computed
	for i := range 1000 { // names that a machine made up
		all = append(all, of(fmt.Sprint("made-up-", i), spec.Insufficient))
	}
	learn(append(all, of("web", spec.Ready), of("db", spec.Ready))...)
	if n, stored := len(b.fake.specs), len(rowsOf[store.Spec](t, b.store, store.Specs)); n != 2 || stored != 2 || len(b.specs.by) != 1002 {
		t.Errorf("%d messages and %d versions of %d keys, want 2 of each of 1002", n, stored, len(b.specs.by))
	}
	first := b.fake.specs[0].Revision
	b.fake.put = func(*wire.Specs) error { return errors.New("not connected") }
	l.learnt = []spec.Computed{of("db", spec.Ready)}
	if err := b.learn(t.Context()); err == nil {
		t.Fatal("announced without a connection")
	}
	if len(b.specs.by) != 2 {
		t.Errorf("%d keys: a withdrawn spec must stay until agents know", len(b.specs.by))
	}
	b.fake.put = nil
	learn(of("db", spec.Ready))
	m := b.fake.specs[len(b.fake.specs)-1]
	if m.Job != "web" || len(m.Specs) != 1 || m.Specs[0].State != wire.Spec_STATE_INSUFFICIENT || m.Specs[0].Samples != 0 || m.Revision <= first {
		t.Errorf("the last message is %v, want web withdrawn", m)
	}
	if len(b.specs.by) != 1 || len(b.specs.unannounced) != 0 {
		t.Errorf("%d keys are left, want db only", len(b.specs.by))
	}
	n := len(b.fake.specs)
	learn(of("db", spec.Ready))
	if len(b.fake.specs) != n {
		t.Errorf("what did not change is announced again: %v", b.fake.specs[n:])
	}
	learn(of("web", spec.Ready), of("db", spec.Ready))
	if again := b.fake.specs[n]; again.Job != "web" || again.Revision <= m.Revision {
		t.Errorf("web is back: %v, want a later revision than %d", again, m.Revision)
	}
}

// TestAWithdrawalSurvivesTheServer: a server that ended after it stored a withdrawal and before it
// told the agents: the next one tells them.
func TestAWithdrawalSurvivesTheServer(t *testing.T) {
	l := &learner{}
	b := newBench(t, func(p *Options) { p.Learner = l })
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		if !strings.Contains(job.SQL, "FROM spec_history") {
			return &duck.Answer{}, nil
		}
		return &duck.Answer{Answer: dialect.Answer{Rows: []json.RawMessage{
			json.RawMessage(`["web","p","cpi","v","insufficient",0,0,0,0,0,5000,0,0,null,null,null,6000,3,null,null,null,null,null,null]`)}}}, nil
	}
	if err := b.startSpecs(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := b.fake.specs; len(all) != 1 || all[0].Job != "web" || all[0].Specs[0].State != wire.Spec_STATE_INSUFFICIENT || len(b.specs.by) != 0 {
		t.Errorf("announced %v, %d keys left", all, len(b.specs.by))
	}
}

// TestMoreSpecsThanFit: the server starts with as many as fit, and says so.
func TestMoreSpecsThanFit(t *testing.T) {
	b := newBench(t, nil)
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		if !strings.Contains(job.SQL, "FROM spec_history") || job.Limits.Rows != maxSpecs {
			t.Errorf("asked %+v", job)
		}
		return &duck.Answer{Answer: dialect.Answer{Truncated: true, Rows: []json.RawMessage{
			json.RawMessage(`["web","p","cpi","v","ready",5,600,1,1.5,0.1,5000,7,1,500,0.3,0.01,6000,3,null,1,2,3,"","[\"m9\"]",2.4]`)}}}, nil
	}
	if err := b.loadSpecs(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := b.specs.by[spec.Key{Job: "web", Platform: "p", Signal: "cpi", Variant: "v"}]
	if v.Version != 3 || v.At != 6000 || v.Machines != 7 || v.MachinesOut != 1 || v.LeftOut != `["m9"]` || v.Mean != 1.5 || v.SelfSamples != 500 || v.SelfMean != 0.3 || v.SelfStdDev != 0.01 || v.Sigmas != 2.4 {
		t.Errorf("loaded %+v", v)
	}
	if h := b.health(); len(h.Degraded) != 1 || !strings.Contains(h.Degraded[0], "more than 5000000 specs") {
		t.Errorf("health %+v", h)
	}
}

// TestSpecsThatCannotBeLoaded: the server starts without them, says so, and announces all again.
func TestSpecsThatCannotBeLoaded(t *testing.T) {
	l := &learner{learnt: []spec.Computed{{Spec: spec.Spec{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.CPI}, State: spec.Ready, Samples: 10, Mean: 1}}}}
	b := newBench(t, func(p *Options) { p.Learner = l })
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		if strings.Contains(job.SQL, "FROM spec_history") {
			return nil, errors.New("out of memory")
		}
		return &duck.Answer{}, nil
	}
	if err := b.startSpecs(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := b.health(); !h.OK || len(h.Degraded) != 1 || !strings.Contains(h.Degraded[0], "out of memory") {
		t.Errorf("health %+v", h)
	}
	if err := b.learn(t.Context()); err != nil || len(b.fake.specs) != 1 || len(b.health().Degraded) != 0 {
		t.Errorf("after a computation: %v, %d messages, %+v", err, len(b.fake.specs), b.health())
	}
}

// TestRevocation: an operator takes back what a machine taught. It is in the store and in the
// audit log, the next computation excludes it, and lifting it ends that.
func TestRevocation(t *testing.T) {
	l := &learner{}
	b := newBench(t, func(p *Options) { p.Learner, p.Tokens = l, tokens(t) })
	b.specs.by = map[spec.Key]store.Spec{}
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		a := &duck.Answer{}
		if !strings.Contains(job.SQL, "FROM revocations\nQUALIFY") {
			return a, nil
		}
		for _, r := range rowsOf[store.Revocation](t, b.store, store.Revocations) {
			row, err := json.Marshal([]any{r.Machine, r.Job, r.Since, r.Until})
			if err != nil {
				t.Fatal(err)
			}
			a.Rows = []json.RawMessage{row} // the newest
		}
		return a, nil
	}
	post := func(body string) (int, string) {
		t.Helper()
		w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/specs/revoke", body)
		return w.Code, w.Body.String()
	}
	for body, want := range map[string]string{
		`{"why":"x","since":"1h"}`:                             "want a machine, a job, or both",
		`{"why":"x","machine":"m1"}`:                           "since is empty",
		`{"why":"","machine":"m1","since":"1h"}`:               "why is empty",
		`{"why":"x","machine":"m1","since":"1h","lift":true}`:  "want either lift",
		`{"why":"x","machine":"m1","since":"1h","until":"2h"}`: "is before since",
		`{"why":"x","machine":"m1","since":"a moment ago"}`:    "since",
	} {
		if status, text := post(body); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want 400 with %q", body, status, text, want)
		}
	}
	if w := b.do("192.0.2.1", "quell", "viewer-secret", "POST", "/v1/specs/revoke", `{"why":"x","machine":"m1","since":"1h"}`); w.Code != 403 {
		t.Errorf("a viewer: %d", w.Code)
	}
	if status, text := post(`{"why":"it lies","machine":"m1","job":"web","since":"1h"}`); status != 200 || !strings.Contains(text, "revoke specs of job web on machine m1 since 1h") {
		t.Fatalf("%d %s", status, text)
	}
	now := sample.At(start)
	if diff := cmp.Diff([]store.Window{{Machine: "m1", Job: "web", From: now.Add(-time.Hour), To: now}}, l.windows); diff != "" {
		t.Error(diff)
	}
	audit := rowsOf[store.Audit](t, b.store, store.AuditLog)
	if last := audit[len(audit)-1]; last.Why != "it lies" || !strings.Contains(last.Target, "machine m1") || !strings.Contains(last.Outcome, "specs changed") {
		t.Errorf("audit log: %+v", last)
	}
	if status, text := post(`{"why":"installed again","machine":"m1","job":"web","lift":true}`); status != 200 || len(l.windows) != 0 {
		t.Errorf("%d %s, windows %v", status, text, l.windows)
	}
}

// TestRevocationOfAClockThatWasAhead: what was revoked while the server's clock was ahead can be lifted when
// it is right again.
func TestRevocationOfAClockThatWasAhead(t *testing.T) {
	now := start.Add(365 * 24 * time.Hour)
	b := newBench(t, func(p *Options) { p.Tokens, p.Now = tokens(t), func() time.Time { return now } })
	b.specs.by = map[spec.Key]store.Spec{}
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		a := &duck.Answer{}
		if strings.Contains(job.SQL, `max("at")`) {
			newest := "null"
			for _, r := range rowsOf[store.Revocation](t, b.store, store.Revocations) {
				newest = fmt.Sprint(r.At)
			}
			a.Rows = []json.RawMessage{json.RawMessage("[" + newest + "]")}
		}
		return a, nil
	}
	for _, body := range []string{`{"why":"it lies","machine":"m1","since":"1h"}`, `{"why":"it does not","machine":"m1","lift":true}`} {
		if w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/specs/revoke", body); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		now = start
	}
	if all := rowsOf[store.Revocation](t, b.store, store.Revocations); len(all) != 2 || all[1].At != all[0].At+1 || *all[1].Until >= all[1].Since {
		t.Errorf("%+v", all)
	}
}

// TestSpecsGoOnBetweenComputations: between two computations a spec becomes ready and
// follows changes of its job. Samples of an incident are excluded.
func TestSpecsGoOnBetweenComputations(t *testing.T) {
	now := start.Add(-45*time.Minute - time.Second)
	dir := t.TempDir()
	b := newBench(t, func(p *Options) {
		p.Learner = &digest.Learner{Dir: filepath.Join(dir, "digests")}
		p.Config.Specs.MinMachines = 1
		p.Now = func() time.Time { return now }
	})
	b.specs.by = map[spec.Key]store.Spec{}
	r := rand.New(rand.NewPCG(1, 2))
	n := uint64(0)
	give := func(from time.Time, length time.Duration, cost func(task int) float64) {
		n++
		batch := &store.Batch{Source: store.Source{Stream: samplesStream, Machine: "m"}, N: n}
		for at := from; at.Before(from.Add(length)); at = at.Add(15 * time.Second) {
			for task := range 5 {
				batch.Samples = append(batch.Samples, sample.Sample{TS: sample.At(at), Machine: "m", Job: "web", Task: sample.TaskName(fmt.Sprint("/", task)), Platform: "p",
					Signal: sample.CPI, Variant: "v", CPU: 1, Cost: float32(cost(task) + 0.1*r.NormFloat64()), Coverage: 1})
			}
		}
		if !b.Add(batch) {
			t.Fatal("not taken")
		}
		if err := b.store.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	normal := func(int) float64 { return 1 }
	published := func() *wire.Spec {
		t.Helper()
		if len(b.fake.specs) == 0 {
			return nil
		}
		last := b.fake.specs[len(b.fake.specs)-1]
		return last.Specs[0]
	}
	give(start.Add(-60*time.Minute), 15*time.Minute, normal)
	if err := b.learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := published(); s.GetState() != wire.Spec_STATE_LEARNING {
		t.Fatalf("60 samples a task: %v", s)
	}
	give(start.Add(-45*time.Minute), 15*time.Minute, normal)
	follow := func(at time.Time) {
		t.Helper()
		now = at
		if err := b.announceLive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	follow(start.Add(-31 * time.Minute))
	if s := published(); s.GetState() == wire.Spec_STATE_READY {
		t.Errorf("ready before samples were held back for long enough: %v", s)
	}
	follow(start.Add(-15 * time.Minute))
	s := published()
	if s.GetState() != wire.Spec_STATE_READY || s.GetTasks() != 5 || s.GetSamples() != 600 || math.Abs(s.GetMean()-1) > 0.02 {
		t.Errorf("120 samples a task: %v", s)
	}

	began := start.Add(-15 * time.Minute)
	b.Add(&store.Batch{Source: store.Source{Stream: recordsStream, Machine: "m"}, N: 1, Incidents: []store.Incident{{Machine: "m", ID: "1", VictimTask: "/3", Signal: "cpi", Began: began.UnixMilli(), Updated: start.UnixMilli()}}})
	give(began, 15*time.Minute, func(task int) float64 {
		if task == 3 {
			return 5
		}
		return 1
	})
	follow(start.Add(15 * time.Minute))
	if s := published(); math.Abs(s.GetMean()-1) > 0.02 {
		t.Errorf("an incident got into the spec: %v", s)
	}
	if st := b.live.by.Stats(); st.Refused != 60 {
		t.Errorf("%+v: want the victim's 60 samples refused", st)
	}
	give(start, 15*time.Minute, func(int) float64 { return 2 })
	follow(start.Add(30 * time.Minute))
	if s := published(); s.GetMean() < 1.1 {
		t.Errorf("a change without incidents is not followed: %v", s)
	}
}
