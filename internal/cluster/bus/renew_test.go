package bus

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// serveRenewals answers requests until the test ends.
func serveRenewals(t *testing.T, b *Bus, renew func(machine, key string) ([]string, error)) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	before := b.commands.link.nc.NumSubscriptions() // one at least, of the answers to requests
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := b.ServeRenewals(ctx, renew); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	quelltest.Until(t, "the server listens", func() bool {
		return b.commands.link.nc.NumSubscriptions() > before && b.commands.link.ask(t.Context()) == nil
	})
}

// TestEnrolment: an agent replaces credentials that were made for enrolment by others, for a
// key that it made itself, and goes on with them after a restart. It may start before it has any.
// The next ones it gets when they are due.
func TestEnrolment(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	keep(t, b)
	serveRenewals(t, b, func(machine, key string) ([]string, error) { return a.Renew(machine, key, time.Now()) })
	const life = 90 * 24 * time.Hour
	first, err := a.Enrol("m1", time.Hour, life)
	path := filepath.Join(t.TempDir(), "m1.creds")
	if err != nil {
		t.Fatal(err)
	}
	open := func() *Uplink {
		t.Helper()
		u, err := OpenUplink(UplinkOptions{Options: Options{URL: url, Name: "m1", Credentials: path, pause: 20 * time.Millisecond},
			Dir: t.TempDir(), MaxBytes: MinSpool, read: 10 * time.Millisecond, Decided: func(context.Context) {}})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	u := open()
	quelltest.Until(t, "it says that it has none yet", func() bool {
		_, due := u.Expires(time.Now())
		return errors.Is(due, fs.ErrNotExist)
	})
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it has credentials that last", func() bool {
		at, due := u.Expires(time.Now())
		return due == nil && time.Until(at) > life-time.Hour
	})
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seed := func(text []byte) []byte { return text[bytes.Index(text, []byte("\nSU")):][:59] }
	f, err := credential.Parse(second)
	if err != nil || f.Enrols || !f.Renewable || bytes.Equal(seed(first), seed(second)) {
		t.Errorf("%+v, %v", f, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	u = open()
	defer u.Close()
	u.Samples(1, samples("m1", 1))
	quelltest.Until(t, "it works with them", func() bool { return u.Stats().Sent == 1 && u.Err() == nil })
	public, _, err := credential.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Renew("m1", public, time.Now()); !errors.Is(err, authority.ErrNotDue) {
		t.Errorf("before they are due: %v", err)
	}
	if tokens, err := a.Renew("m1", public, time.Now().Add(life-13*24*time.Hour)); err != nil || len(tokens) != 3 {
		t.Errorf("when they are due: %d, %v", len(tokens), err)
	}
	if n, err := a.Revoke(authority.Agent, "m1", time.Now()); err != nil || n != 3 {
		t.Errorf("%d were revoked, %v", n, err)
	}
	if _, err := a.Renew("m1", public, time.Now().Add(life-13*24*time.Hour)); !errors.Is(err, authority.ErrNotDue) {
		t.Errorf("after they were revoked: %v", err)
	}
	for _, c := range [][2]time.Duration{{0, life}, {time.Hour, 0}, {-time.Hour, life}} {
		if _, err := a.Enrol("m1", c[0], c[1]); err == nil {
			t.Errorf("enrolment for %s with a life of %s", c[0], c[1])
		}
	}
}

// loseFirstAnswer renews the credentials of machine m1. The first answer has none, although they are
// recorded.
func loseFirstAnswer(t *testing.T, a *authority.Authority, b *Bus) {
	t.Helper()
	nc, asked := b.commands.link.nc, 0
	if _, err := nc.Subscribe(wire.AllRenewals, func(m *nats.Msg) {
		var ask wire.Renewal
		answer := &wire.Renewed{Machine: "m1"}
		err := wire.Unmarshal(m.Data, &ask)
		if err == nil {
			answer.Tokens, err = a.Renew(ask.Machine, ask.Key, time.Now())
		}
		if asked++; asked == 1 {
			answer.Tokens = nil
		}
		if err != nil {
			answer.Refused = err.Error()
		}
		data, err := wire.Marshal(answer)
		if err == nil {
			err = nc.Publish(wire.RenewedSubject("m1"), data)
		}
		if err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestRenewedAnswerIsLost: an agent whose answer was lost, after the server had recorded its new
// credentials, gets them when it asks again, also after a restart.
func TestRenewedAnswerIsLost(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		renewedAnswerIsLost(t, restarts)
	}
}

func renewedAnswerIsLost(t *testing.T, restarts bool) {
	a := newAuthority(t)
	url := serveHere(t, a)
	loseFirstAnswer(t, a, openBus(t, a, url, 1))
	path := filepath.Join(t.TempDir(), "m1.creds")
	first, err := a.Enrol("m1", time.Hour, 90*24*time.Hour)
	if err == nil {
		err = os.WriteFile(path, first, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	o := UplinkOptions{Options: Options{URL: url, Name: "m1", Credentials: path}, Dir: t.TempDir(), MaxBytes: MinSpool, Decided: func(context.Context) {}}
	u, err := OpenUplink(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { u.Close() }()
	quelltest.Until(t, "the first answer is of no use", func() bool { return u.renewing.get() != nil })
	if restarts {
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
		if u, err = OpenUplink(o); err != nil {
			t.Fatal(err)
		}
		quelltest.Until(t, "it gets its credentials after a restart", func() bool { f := u.credentials.Load(); return f != nil && !f.Enrols })
	} else { // it asks again in a minute
		quelltest.Until(t, "it gets its credentials", func() bool { return u.renew(t.Context(), u.credentials.Load()) == nil })
	}
	if _, err := os.Stat(u.keyFile()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key is left: %v", err)
	}
	if f, err := credential.Load(path); err != nil || f.Enrols || time.Until(f.Expires) < 89*24*time.Hour {
		t.Errorf("%+v, %v", f, err)
	}
	all, err := a.Issued()
	if n := len(slices.DeleteFunc(all, func(i authority.Issued) bool { return i.Role != authority.Agent })); err != nil || n != 2 {
		t.Errorf("%d are recorded, %v", n, err)
	}
	other, _, err := credential.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Renew("m1", other, time.Now()); !errors.Is(err, authority.ErrNotDue) {
		t.Errorf("another machine with the same file: %v", err)
	}
}

// TestCredentialsOfAnotherName: an agent whose credentials are of another name than its machine's, its host name without
// the domain for example, says so: the bus takes nothing from it, and it sees only that no answer comes.
func TestCredentialsOfAnotherName(t *testing.T) {
	a := newAuthority(t)
	for machine, good := range map[string]bool{"host-17": true, "host-17.example.org": false} {
		u, err := OpenUplink(UplinkOptions{Options: Options{URL: "nats://127.0.0.1:1", Name: machine, Credentials: credentials(t, a, authority.Agent, "host-17", 0)},
			Dir: t.TempDir(), MaxBytes: MinSpool})
		if err != nil {
			t.Fatal(err)
		}
		_, due := u.Expires(time.Now())
		if good && due != nil || !good && (due == nil || !strings.Contains(due.Error(), "is of agent host-17, and this machine is called host-17.example.org")) {
			t.Errorf("%s: %v", machine, due)
		}
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRenewedOnAFullDisk: an agent that cannot keep the key for which it asks gets its credentials all the same.
func TestRenewedOnAFullDisk(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	serveRenewals(t, openBus(t, a, url, 1), func(machine, key string) ([]string, error) { return a.Renew(machine, key, time.Now()) })
	path, dir := filepath.Join(t.TempDir(), "m1.creds"), t.TempDir()
	text, err := a.Enrol("m1", time.Hour, 90*24*time.Hour)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err == nil { // in the place of the file
		err = os.Mkdir(filepath.Join(dir, "renewal-key"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: url, Name: "m1", Credentials: path}, Dir: dir, MaxBytes: MinSpool, Decided: func(context.Context) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	quelltest.Until(t, "it gets its credentials", func() bool { f := u.credentials.Load(); return f != nil && !f.Enrols })
}

// TestRenewedAmongOtherAnswers: what answers a machine's question for specs is no answer to its request for credentials.
func TestRenewedAmongOtherAnswers(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	specs, err := wire.Marshal(&wire.Specs{Job: "web", Platform: "p"})
	if err != nil {
		t.Fatal(err)
	}
	serveRenewals(t, b, func(machine, key string) ([]string, error) {
		if err := b.commands.link.nc.Publish(wire.RenewedSubject(machine), specs); err != nil {
			return nil, err
		}
		return a.Renew(machine, key, time.Now())
	})
	path := filepath.Join(t.TempDir(), "m1.creds")
	text, err := a.Enrol("m1", time.Hour, 90*24*time.Hour)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: url, Name: "m1", Credentials: path}, Dir: t.TempDir(), MaxBytes: MinSpool})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	quelltest.Until(t, "it gets its credentials", func() bool { f := u.credentials.Load(); return f != nil && !f.Enrols })
	if err := u.renewing.get(); err != nil {
		t.Error(err)
	}
}

// TestRenewalsOfThousands: a request of which the machine no longer awaits the answer delays none of which it does.
func TestRenewalsOfThousands(t *testing.T) {
	in := newInbox(renewWait)
	for _, machine := range []string{"m1", "m2", "m3"} {
		in.put(&nats.Msg{Subject: wire.RenewalSubject(machine)})
	}
	for _, machine := range []string{"m1", "m2"} {
		in.newest[wire.RenewalSubject(machine)].at = time.Now().Add(-2 * renewWait)
	}
	in.put(&nats.Msg{Subject: wire.RenewalSubject("m2")}) // it asks again
	for _, machine := range []string{"m2", "m3"} {
		if m := in.take(); m == nil || m.Subject != wire.RenewalSubject(machine) {
			t.Errorf("%+v, want that of %s", m, machine)
		}
	}
	if m := in.take(); m != nil {
		t.Errorf("%+v is left", m)
	}
}

// TestAttackRenewalForAnother: a machine gets no credentials of another, and cannot have
// any number signed.
func TestAttackRenewalForAnother(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	var asked atomic.Int64
	serveRenewals(t, b, func(machine, key string) ([]string, error) {
		switch machine {
		case "m1":
			asked.Add(1)
		case "m4": // the last one
		default:
			t.Errorf("credentials of %s were requested", machine)
		}
		return nil, errors.New("no")
	})
	creds := credentials(t, a, authority.Agent, "m1", time.Hour)
	g := connect(t, url, creds, credential.Commands)
	answers, err := g.SubscribeSync(wire.RenewedSubject("m1"))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(machine string) []byte {
		public, _, err := credential.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		data, err := wire.Marshal(&wire.Renewal{Machine: machine, Key: public})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, subject := range []string{wire.RenewalSubject("m2"), wire.RenewedSubject("m2"), wire.RenewedSubject("m1"), wire.AllRenewals} {
		if g.may(t, func() error { return g.Publish(subject, ask("m2")) }) {
			t.Errorf("it may publish on %s", subject)
		}
	}
	if g.may(t, func() error { _, err := g.SubscribeSync(wire.RenewedSubject("m2")); return err }) {
		t.Error("it may hear the answers to m2")
	}
	for range 100 {
		if err := g.PublishRequest(wire.RenewalSubject("m1"), wire.CommandAll, ask("m1")); err != nil {
			t.Fatal(err)
		}
	}
	m, err := answers.NextMsg(4 * time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var r wire.Renewed
	if err := wire.Unmarshal(m.Data, &r); err != nil || r.Refused != "no" {
		t.Errorf("%v, %v", &r, err)
	}
	other := connect(t, url, credentials(t, a, authority.Agent, "m3", time.Hour), credential.Commands)
	last, err := other.SubscribeSync(wire.RenewedSubject("m3"))
	if err == nil {
		err = other.PublishMsg(&nats.Msg{Subject: wire.RenewalSubject("m3"), Data: ask("m1")}) // forged, and dropped
	}
	if err == nil {
		err = other.FlushTimeout(time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	// A fourth machine's request is answered after them, so that they have been read. It may find no
	// room: it is sent until one is answered.
	fourth := connect(t, url, credentials(t, a, authority.Agent, "m4", time.Hour), credential.Commands)
	answered, err := fourth.SubscribeSync(wire.RenewedSubject("m4"))
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "all requests were read", quelltest.Paced(func() bool {
		if err := fourth.Publish(wire.RenewalSubject("m4"), ask("m4")); err != nil {
			t.Fatal(err)
		}
		n, _, err := answered.Pending()
		return err == nil && n > 0
	}))
	if err := other.FlushTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	if n, _, err := last.Pending(); err != nil || n != 0 || asked.Load() != 1 {
		t.Errorf("%d answers to a forged request, %v; %d were passed on", n, err, asked.Load())
	}

	// What a server would have to answer is checked too.
	f, err := credential.Load(creds)
	if err != nil {
		t.Fatal(err)
	}
	renewed := func(by *authority.Authority, machine string) error {
		if _, err := by.Issue(authority.Agent, machine, time.Hour); err != nil {
			t.Fatal(err)
		}
		public, seed, err := credential.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		tokens, err := by.Renew(machine, public, time.Now().Add(50*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Renewed(tokens, seed, time.Now())
		return err
	}
	if err := renewed(a, "m1"); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := renewed(a, "m2"); err == nil {
		t.Error("another machine's are accepted")
	}
	if err := renewed(newAuthority(t), "m1"); err == nil {
		t.Error("another authority's are accepted")
	}
}
