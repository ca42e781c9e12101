package embedded_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func keys(t *testing.T) (*authority.Authority, authority.Trust) {
	t.Helper()
	a, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	return a, trust
}

// TestInProcess: a server without a listener serves its own process, keeps its data over
// a restart, and leaves nothing running.
func TestInProcess(t *testing.T) {
	a, trust := keys(t)
	dir := t.TempDir()
	creds := filepath.Join(t.TempDir(), "server.creds")
	text, err := a.Issue(authority.Server, "server", 0)
	if err == nil {
		err = os.WriteFile(creds, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	open := func() (*embedded.Server, *bus.Bus) {
		t.Helper()
		s, err := embedded.Start(embedded.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}, trust)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		b, err := bus.Open(ctx, bus.Options{Name: "server", Credentials: creds, InProcess: s, Log: slog.New(slog.DiscardHandler)},
			bus.Settings{Waiting: bus.MinWaiting})
		if err != nil {
			t.Fatal(err)
		}
		return s, b
	}
	s, b := open()
	if err := b.PutSpecs(t.Context(), wire.SpecsOf("web", "p", 1, []spec.Spec{})); err != nil {
		t.Fatal(err)
	}
	b.Close()
	s.Close()
	s, b = open()
	if err := holdsSpecs(t.Context(), s, creds, "web", "p"); err != nil {
		t.Error(err)
	}
	b.Close()
	s.Close()
}

// holdsSpecs returns why a server's bucket has no specs of a job on a platform.
func holdsSpecs(ctx context.Context, s *embedded.Server, creds, job, platform string) error {
	f, err := credential.Load(creds)
	if err != nil {
		return err
	}
	token := func() (string, error) { return f.Token(credential.Store) }
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserJWT(token, f.Answer), nats.CustomInboxPrefix("inbox.server"))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	bucket, err := js.KeyValue(ctx, "specs")
	if err != nil {
		return err
	}
	_, err = bucket.Get(ctx, wire.SpecKey(job, platform))
	return err
}

func TestRefuses(t *testing.T) {
	_, trust := keys(t)
	for name, o := range map[string]embedded.Options{
		"no port":   {Dir: t.TempDir(), Listen: "localhost"},
		"no number": {Dir: t.TempDir(), Listen: "localhost:nats"},
	} {
		if s, err := embedded.Start(o, trust); err == nil {
			s.Close()
			t.Errorf("%s: it started", name)
		}
	}
	if s, err := embedded.Start(embedded.Options{Dir: t.TempDir()}, authority.Trust{}); err == nil {
		s.Close()
		t.Error("it started without trusted keys")
	}
}

// TestAttackAllConnections: an agent that opens as many connections as there may be does not keep others
// out: those that it has too many are closed, and the audit log has its name.
func TestAttackAllConnections(t *testing.T) {
	a, trust := keys(t)
	const most = 100
	var mu sync.Mutex
	var refused []embedded.Refusal
	s, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Connections: most, Log: slog.New(slog.DiscardHandler),
		Refused: func(r embedded.Refusal) { mu.Lock(); defer mu.Unlock(); refused = append(refused, r) }}, trust)
	if err != nil {
		t.Fatal(err)
	}
	var all []*nats.Conn
	open := func(machine string, n int) (own []*nats.Conn) {
		t.Helper()
		text, err := a.Issue(authority.Agent, machine, 0)
		if err != nil {
			t.Fatal(err)
		}
		f, err := credential.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		token := func() (string, error) { return f.Token(credential.Samples) }
		for i := range n { // NATS believes its JWT, and reports what else it says
			nc, err := nats.Connect(s.URL(), nats.UserJWT(token, f.Answer), nats.UserInfo(fmt.Sprint(machine, i), "x"), nats.NoReconnect(), nats.Timeout(time.Minute))
			if err != nil {
				t.Fatalf("%s: %v", machine, err)
			}
			own, all = append(own, nc), append(all, nc)
		}
		return own
	}
	good := open("good", 3)
	open("evil", most/2-3)
	s.Shed() // the server does it too, every few seconds
	quelltest.Until(t, "one agent has few", func() bool { return s.NumClients() <= 3+32 })
	open("evil", most/2)
	s.Shed()
	quelltest.Until(t, "there is room", func() bool { return s.NumClients() <= 3+32+32 })
	open("late", 3)
	for _, nc := range good {
		if err := nc.FlushTimeout(time.Minute); err != nil {
			t.Errorf("one that has few: %v", err)
		}
	}
	for _, nc := range all {
		nc.Close()
	}
	s.Close()
	if len(refused) == 0 || refused[0].Client != "agent.evil" || refused[0].Operation != "connect" {
		t.Errorf("%+v", refused)
	}
}

// TestPending checks what may wait for a client: never less than NATS's own limit.
func TestPending(t *testing.T) {
	_, trust := keys(t)
	for pending, want := range map[int64]int64{0: natsserver.MAX_PENDING_SIZE, 1 << 20: natsserver.MAX_PENDING_SIZE, 256 << 20: 256 << 20} {
		s, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Pending: pending}, trust)
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.Varz(nil)
		s.Close()
		if err != nil || v.MaxPending != want {
			t.Errorf("of %d: %d may wait, %v; want %d", pending, v.MaxPending, err, want)
		}
	}
}
