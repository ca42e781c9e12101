package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// rig is a NATS server with a server of quell that stores in memory.
type rig struct {
	a   *authority.Authority
	url string
	bus *bus.Bus

	mu      sync.Mutex
	next    map[string]uint64 // by machine: the number of its newest batch
	batches uint64
	wrong   error
}

// store stores what comes, and acknowledges it each interval.
func (r *rig) store(t *testing.T, interval time.Duration) {
	t.Helper()
	r.next = map[string]uint64{}
	c, err := r.bus.Consume(t.Context(), bus.Samples)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for due := time.Now(); ctx.Err() == nil; due = due.Add(interval) {
			commit, cancel := context.WithDeadline(ctx, due.Add(interval))
			for commit.Err() == nil {
				all, err := c.Fetch(commit, nil, 100)
				r.take(all, err)
			}
			cancel()
			c.Ack(1 << 60)
		}
	})
	t.Cleanup(func() { stop(); running.Wait(); c.Close() })
}

func (r *rig) take(all []bus.Message, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range all {
		var b wire.Batch
		if err == nil {
			err = all[i].Batch(&b)
		}
		if r.next[b.Machine]++; err == nil && (b.N != r.next[b.Machine] || len(b.Samples) != 5) {
			err = fmt.Errorf("batch %d of %s comes where %d should, %d samples", b.N, b.Machine, r.next[b.Machine], len(b.Samples))
		}
		r.batches++
	}
	if r.wrong == nil {
		r.wrong = err
	}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	a, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"}, trust)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	r := &rig{a: a, url: s.URL()}
	creds, err := r.issue(t, authority.Server, "server")
	if err != nil {
		t.Fatal(err)
	}
	r.bus, err = bus.Open(t.Context(), bus.Options{URL: r.url, Name: "server", Credentials: creds, Log: slog.New(slog.DiscardHandler)}, bus.Settings{Waiting: bus.MinWaiting})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.bus.Close)
	return r
}

func (r *rig) issue(t *testing.T, role authority.Role, name string) (string, error) {
	text, err := r.a.Issue(role, name, time.Hour)
	if err != nil {
		return "", err
	}
	path := filepath.Join(t.TempDir(), name)
	return path, os.WriteFile(path, text, 0o600)
}

func (r *rig) options(t *testing.T) Options {
	return Options{Machines: 7, Tasks: 5, Period: 50 * time.Millisecond, For: time.Second, Seed: 1, URL: r.url, Every: time.Second, Finish: time.Minute, Settle: 50 * time.Millisecond,
		Credentials: func(machine string) (string, error) { return r.issue(t, authority.Agent, machine) }}
}

// TestWhatIsAcknowledgedIsThere: what is reported as acknowledged has come, each machine's batches
// in order. A server that answers seldom gets more batches at a time, and none is left.
func TestWhatIsAcknowledgedIsThere(t *testing.T) {
	r := newRig(t)
	r.store(t, 250*time.Millisecond)
	o := r.options(t)
	o.Drain = time.Minute
	got, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	const due = 7 * 20 // batches
	if got.Batches != due || got.Acknowledged != 5*due || got.Left != 0 || got.WireBytes < 10 || got.AckP50 <= 0 || got.AckP99 < got.AckP50 {
		t.Errorf("%+v", got)
	}
	if got.Deliveries == 0 || got.Deliveries > due*2/3 {
		t.Errorf("%d batches came in %d deliveries", got.Batches, got.Deliveries)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batches != due || len(r.next) != 7 || r.wrong != nil {
		t.Errorf("%d batches of %d machines came, %v", r.batches, len(r.next), r.wrong)
	}
}

// TestWhatIsLeft: what a server does not accept is reported.
func TestWhatIsLeft(t *testing.T) {
	r := newRig(t)
	o := r.options(t)
	o.Finish, o.For = 0, 2*time.Second
	got, err := Run(t.Context(), o)
	if err != nil || got.Batches != 0 || got.Resends == 0 || got.Left < 7*38 || !strings.Contains(got.AgainWhy, "no quell-server receives") {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSeed: the same seed gives the same tasks.
func TestSeed(t *testing.T) {
	name := func(seed uint64, i int) string {
		m, err := newMachine(&Options{Machines: 10, Tasks: 3, Seed: seed}, i, "b")
		if err != nil {
			t.Fatal(err)
		}
		var b wire.Batch
		if err := b.Decode(m.tick(1)); err != nil {
			t.Fatal(err)
		}
		for i := range b.Samples {
			b.Samples[i].Machine = ""
		}
		return fmt.Sprint(b.Samples)
	}
	if again := name(1, 4); name(1, 4) != again {
		t.Error("one seed, two fleets")
	}
	if name(1, 4) == name(2, 4) || name(1, 4) == name(1, 5) {
		t.Error("all machines are one")
	}
}

func TestInterruptedItSaysWhatCameOfIt(t *testing.T) {
	r := newRig(t)
	r.store(t, 50*time.Millisecond)
	o := r.options(t)
	o.For, o.Every = time.Hour, 10*time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o.Meter = func(context.Context) (u Usage, err error) { return u, nil }
	o.Progress = func(p Progress) {
		if p.Acknowledged > 0 {
			stop()
		}
	}
	got, err := Run(ctx, o)
	if got == nil || got.Acknowledged == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	// The server of this test has committed nothing.
	if !errors.Is(err, errNotCommitted) {
		t.Errorf("the error is %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	r := newRig(t)
	o := r.options(t)
	o.Credentials = func(string) (string, error) { return r.issue(t, authority.Agent, "somebody-else") }
	// Credentials of another machine connect; the messages are refused until the context
	// ends.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	o.For, o.Finish = time.Second, 0
	got, err := Run(ctx, o)
	if err == nil && got.Acknowledged > 0 {
		t.Errorf("%+v", got)
	}
	o.URL = "nats://127.0.0.1:1"
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := Run(ctx, o); err == nil || !strings.Contains(err.Error(), "connect 7 machines, 0 are") {
		t.Errorf("connected without a server: %v", err)
	}
}

func TestMeter(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			status = http.StatusUnauthorized
		}
		w.WriteHeader(status)
		fmt.Fprint(w, "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.5\n# TYPE quell_server_pending_rows gauge\nquell_server_pending_rows 20\n"+
			"# TYPE quell_server_samples_total counter\nquell_server_samples_total 100\nother_total{a=\"b\"} 1\n")
	}))
	defer s.Close()
	u, err := MeterURL(s.Client(), s.URL, "secret")(t.Context())
	if err != nil || u.CPU != 1.5 || u.committed() != 80 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := MeterURL(s.Client(), s.URL, "")(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without a token: %v", err)
	}
}

func TestSlowest(t *testing.T) {
	at := func(seconds int, n uint64) reading {
		return reading{at: time.Duration(seconds) * time.Second, acknowledged: n}
	}
	for name, c := range map[string]struct {
		all  []reading
		want float64
	}{
		"nothing":          {nil, 0},
		"short":            {[]reading{at(1, 0), at(3, 20)}, 10},
		"one slow stretch": {[]reading{at(0, 0), at(10, 1000), at(20, 1100), at(30, 2100)}, 10},
		"steady":           {[]reading{at(0, 0), at(10, 1000), at(20, 2000)}, 100},
	} {
		if got := slowest(c.all); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestText(t *testing.T) {
	r := &Result{Machines: 6000, Tasks: 50, Period: 1, Seconds: 300, Acknowledged: 90_000_000, Rate: 300_000, Slowest: 299_000, WireBytes: 60.25, AckP50: 1.2, AckP99: 2.5,
		Deliveries: 600_000, Left: 3, Resends: 2, AgainWhy: "lost", PlayerCPU: 0.5,
		Server: &ServerResult{Committed: 90_000_000, CommitRate: 298_000, CPU: 1.2, PerSample: 4, PeakRSS: 5e8, PeakWaiting: 7e6, PeakOldest: 3, Refused: 4, StoredBytes: 9.75, Commits: 150, Segments: 20, Duplicates: 1}}
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"6,000 machines × 50 tasks, a batch each 1s, for 5m0s", "90,000,000 samples, 300,000/s; 299,000/s in the slowest", "after 1.2s (median), 2.5s (99 %); 600,000 deliveries, 2 were sent again", "3 batches were due and not sent", "at most 7.0 MB of messages and 3s; 4 deliveries found no room",
		"reason: lost", "1.20 CPU-s/s, 4.00 µs a sample; at most 500 MB", "9.8 B a sample", "1 batches came twice"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if got := thousands(-1234567); got != "-1,234,567" {
		t.Error(got)
	}
}
