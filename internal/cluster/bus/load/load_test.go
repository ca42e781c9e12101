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
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// rig is a NATS server with quell's streams.
type rig struct {
	a   *authority.Authority
	url string
	bus *bus.Bus
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
	r.bus, err = bus.Open(t.Context(), bus.Options{URL: r.url, Name: "server", Credentials: creds, Log: slog.New(slog.DiscardHandler)}, bus.StreamOptions{MaxBytes: 1 << 30})
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
	return Options{Machines: 7, Tasks: 5, Period: 50 * time.Millisecond, For: time.Second, Seed: 1, URL: r.url, Every: time.Second, Settle: 50 * time.Millisecond,
		Credentials: func(machine string) (string, error) { return r.issue(t, authority.Agent, machine) }}
}

// TestWhatIsAcknowledgedIsThere: what is reported as acknowledged is in the stream, each
// machine's batches in order.
func TestWhatIsAcknowledgedIsThere(t *testing.T) {
	r := newRig(t)
	got, err := Run(t.Context(), r.options(t))
	if err != nil {
		t.Fatal(err)
	}
	if got.Batches == 0 || got.Acknowledged != 5*got.Batches || got.WireBytes < 10 || got.Resends != 0 || got.AckP50 <= 0 || got.AckP99 < got.AckP50 {
		t.Errorf("%+v", got)
	}
	c, err := r.bus.Consume(t.Context(), bus.Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next := map[string]uint64{}
	for n := uint64(0); n < got.Batches; {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		all, err := c.Fetch(ctx, nil, 100)
		cancel()
		if err != nil || len(all) == 0 {
			t.Fatalf("%d of %d, %v", n, got.Batches, err)
		}
		n += uint64(len(all))
		for i := range all {
			var b wire.Batch
			if err := all[i].Batch(&b); err != nil {
				t.Fatal(err)
			}
			if next[b.Machine]++; b.N != next[b.Machine] || len(b.Samples) != 5 {
				t.Fatalf("batch %d of %s comes where %d should, %d samples", b.N, b.Machine, next[b.Machine], len(b.Samples))
			}
		}
	}
	if len(next) != 7 {
		t.Errorf("%d machines, want 7", len(next))
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
	o.For = time.Second
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
	r := &Result{Machines: 6000, Tasks: 50, Period: 1, Seconds: 300, Acknowledged: 90_000_000, Rate: 300_000, Slowest: 299_000, WireBytes: 60.25, AckP50: 0.001, AckP99: 0.05,
		Resends: 2, AgainWhy: "lost", PlayerCPU: 0.5,
		Server: &ServerResult{Committed: 90_000_000, CommitRate: 298_000, CPU: 1.2, PerSample: 4, PeakRSS: 5e8, StoredBytes: 9.75, Commits: 150, Segments: 20, Duplicates: 1}}
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"6,000 machines × 50 tasks, a batch each 1s, for 5m0s", "90,000,000 samples, 300,000/s; 299,000/s in the slowest", "1.0 ms (median), 50.0 ms",
		"reason: lost", "1.20 CPU-s/s, 4.00 µs a sample; at most 500 MB", "9.8 B a sample", "1 batches came twice"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if got := thousands(-1234567); got != "-1,234,567" {
		t.Error(got)
	}
}
