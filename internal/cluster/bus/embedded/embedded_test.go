package embedded_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
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
			bus.StreamOptions{MaxBytes: 1 << 20})
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
	if got, err := b.Specs(t.Context(), "web", "p"); err != nil || got == nil || got.Revision != 1 {
		t.Errorf("kept %v, %v", got, err)
	}
	b.Close()
	s.Close()
}

func TestRefuses(t *testing.T) {
	_, trust := keys(t)
	for name, o := range map[string]embedded.Options{
		"no port":           {Dir: t.TempDir(), Listen: "localhost"},
		"no number":         {Dir: t.TempDir(), Listen: "localhost:nats"},
		"cluster's address": {Dir: t.TempDir(), Listen: "127.0.0.1:0", Cluster: &embedded.Cluster{Name: "c", Listen: "x"}},
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
