package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// TestVersionsOfASpec: each state of a spec is a version with all its fields, and earlier
// versions stay in the history.
func TestVersionsOfASpec(t *testing.T) {
	l := &learner{}
	b := newBench(t, func(p *Options) { p.Learner = l })
	b.fake.answer = func(job *duck.Job) (*duck.Answer, error) {
		if !strings.Contains(job.SQL, "FROM incidents WHERE NOT follows") {
			t.Errorf("asked %s", job.SQL)
		}
		return &duck.Answer{Answer: dialect.Answer{Rows: []json.RawMessage{json.RawMessage(`["m1","/a","runq",100,200,"i1",false]`)}}}, nil
	}
	b.specs.by = map[spec.Key]store.Spec{}
	key := spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "v"}
	one := spec.Computed{Spec: spec.Spec{Key: key, State: spec.Insufficient, Samples: 10, Tasks: 1, Mean: 1, StdDev: 0.5}, Last: 5000}
	ready := one
	ready.State, ready.Samples, ready.P50, ready.P90, ready.P99, ready.Since = spec.Ready, 600, 1.1, 1.2, 1.3, 4000
	ready.Usage = []spec.UsageCost{{From: 0.5, Samples: 600, Mean: 1, StdDev: 0.5}}
	stale := ready
	stale.State = spec.Stale
	for _, v := range []spec.Computed{one, ready, ready, stale} {
		l.learnt = []spec.Computed{v}
		if err := b.learn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]store.Window{{Machine: "m1", Task: "/a", Signal: "runq", From: 100, To: 200}}, l.windows); diff != "" {
		t.Error(diff)
	}
	at := start.UnixMilli()
	base := store.Spec{At: at, Version: 1, Job: "web", Platform: "p", Signal: "cpi", Variant: "v", State: "insufficient", Tasks: 1, Samples: 10, Mean: 1, StdDev: 0.5, Last: 5000}
	second := base
	second.Version, second.State, second.Samples, second.P50, second.P90, second.P99, second.Since = 2, "ready", 600, 1.1, 1.2, 1.3, 4000
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
		if m.Revision == 1 { // it is slow, and the next computation has ended
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
	if all := b.fake.specs; len(all) != 2 || all[0].Revision != 1 || all[1].Revision != 2 {
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

// TestSpecsGoOnBetweenComputations: between two computations a spec becomes ready and
// follows changes of its job. Samples of an incident are excluded.
func TestSpecsGoOnBetweenComputations(t *testing.T) {
	now := start.Add(-45*time.Minute - time.Second)
	dir := t.TempDir()
	b := newBench(t, func(p *Options) {
		p.Learner = &digest.Learner{Dir: filepath.Join(dir, "digests")}
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
