package bus

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestKeysAreRotated: while a NATS server runs, the key that signs credentials is replaced. In
// the overlap clients of both keys work, a connected agent follows decisions signed by the new key, and
// agents get credentials of the new key. After it the former key's clients are cut off, its
// thief is not let in, and no message is lost.
func TestKeysAreRotated(t *testing.T) {
	t.Run("keys of this version", func(t *testing.T) {
		rotateKeys(t, filepath.Join(t.TempDir(), "keys"), "the key that signed the credentials was replaced")
	})
	t.Run("keys of an earlier version", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "keys")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range append(credential.Accounts(), "system") {
			pair, err := nkeys.CreateAccount()
			if err != nil {
				t.Fatal(err)
			}
			seed, err := pair.Seed()
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, string(name)+".nk"), seed, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		rotateKeys(t, dir, "the credentials were revoked")
	})
}

// endOverlap ends the overlap of the rotation in a directory of keys now, and returns its
// authority: nothing waits for the time of an overlap, and nothing must be done within it.
func endOverlap(t *testing.T, dir string) *authority.Authority {
	t.Helper()
	var keys map[string]any
	text, err := os.ReadFile(authority.SigningFile(dir))
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, previous := range keys["previous"].([]any) {
		previous.(map[string]any)["until"] = time.Now().Unix()
	}
	if text, err = json.Marshal(keys); err == nil {
		err = os.WriteFile(authority.SigningFile(dir), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func rotateKeys(t *testing.T, dir, cause string) {
	a, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	trust := func(a *authority.Authority) authority.Trust {
		t.Helper()
		trust, err := a.Trust()
		if err != nil {
			t.Fatal(err)
		}
		return trust
	}
	var refused atomic.Pointer[embedded.Refusal]
	s, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler),
		Refused: func(r embedded.Refusal) { refused.Store(&r) }}, trust(a))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	url := s.URL()
	own := filepath.Join(t.TempDir(), "own.creds") // the server's, which it replaces
	signs := func() {
		t.Helper()
		text, err := a.Issue(authority.Server, "server", time.Hour)
		if err == nil {
			err = os.WriteFile(own, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	signs()
	b, err := Open(t.Context(), Options{URL: url, Name: "server", Credentials: own, Log: slog.New(slog.DiscardHandler), pause: 20 * time.Millisecond},
		Settings{Replicas: 1, Waiting: MinWaiting})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	k, _ := keep(t, b)
	serveRenewals(t, b, func(machine, key string) ([]string, error) {
		tokens, err := a.Renew(machine, key, time.Now())
		if errors.Is(err, authority.ErrNotDue) {
			return nil, nil
		}
		return tokens, err
	})
	d := serveDecisions(t, b)
	m1, forever := obey(t, follower(t, a, url, "m1")), obey(t, follower(t, a, url, "forever"))
	decide := func(o *obedient, id string) {
		t.Helper()
		d.add(t, o.machine, decision(id, 0, off()))
		quelltest.Until(t, o.machine+" follows "+id, func() bool { return slices.Contains(o.stand(), id) })
	}
	decide(m1, "by the first key")
	renewable := credentials(t, a, authority.Agent, "m2", 90*24*time.Hour)
	stolen := credentials(t, a, authority.Agent, "m3", 90*24*time.Hour)

	issued := time.Now().Unix()
	quelltest.Until(t, "credentials are of another second than the new key", quelltest.Paced(func() bool { return time.Now().Unix() > issued }))
	if err := a.Rotate(time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := s.SetTrust(trust(a)); err != nil {
		t.Fatal(err)
	}
	signs()
	for _, o := range []*obedient{m1, forever} {
		o.Samples(1, samples(o.machine, 1))
		decide(o, "by the new key")
		quelltest.Until(t, "its batch is stored", func() bool { return o.Stats().Sent == 1 })
	}
	m2, err := OpenUplink(UplinkOptions{Options: Options{URL: url, Name: "m2", Credentials: renewable, pause: 20 * time.Millisecond},
		Dir: t.TempDir(), MaxBytes: MinSpool, read: 50 * time.Millisecond, ask: 50 * time.Millisecond, Decided: func(context.Context) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m2.Close() })
	key := func(path string) string {
		t.Helper()
		f, err := credential.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		token, err := f.Token(credential.Commands)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	first := key(renewable)
	quelltest.Until(t, "an agent gets credentials of the new key", quelltest.Paced(func() bool { return key(renewable) != first }))

	later := endOverlap(t, dir)
	last := trust(later)
	if len(last.Ended) != 1 || !last.Until.IsZero() {
		t.Fatalf("after the overlap %+v", last)
	}
	var made []uint64 // connections of the server, by account
	for _, c := range b.connections() {
		made = append(made, c.epoch())
	}
	if err := s.SetTrust(last); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "the former key's agents are cut off", func() bool { return forever.Err() != nil && m1.Err() != nil })
	quelltest.Until(t, "the server, which was cut off too, goes on with its new credentials", func() bool {
		for i, c := range b.connections() {
			if c.epoch() == made[i] {
				return false
			}
		}
		return b.Err() == nil
	})
	m2.Samples(1, samples("m2", 1))
	forever.Samples(2, samples("forever", 1)) // spooled
	quelltest.Until(t, "the renewed agent goes on", quelltest.Paced(func() bool { return m2.Err() == nil && m2.Stats().Sent == 1 }))
	if nc, err := nats.Connect(url, nats.UserCredentials(stolen)); err == nil {
		nc.Close()
		t.Error("credentials of the former key are let in")
	}
	quelltest.Until(t, "the refusal names the cause", func() bool {
		r := refused.Load()
		return r != nil && r.Operation == "connect" && r.Reason == cause
	})
	text, err := later.Issue(authority.Agent, "forever", 0) // by hand
	if err == nil {
		err = os.WriteFile(forever.options.Credentials, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "an agent with new credentials goes on", func() bool { return forever.Err() == nil && forever.Stats().Sent == 2 })
	decide(forever, "after the overlap")
	for machine, want := range map[string]int{"m1": 1, "m2": 1, "forever": 2} {
		if got := k.of(machine); len(got) != want {
			t.Errorf("batches of %s: %d, want %d", machine, got, want)
		}
	}
}
