package bus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// guest is a connection with given credentials.
type guest struct{ *nats.Conn }

func connect(t *testing.T, url, creds string, account credential.Account) *guest {
	t.Helper()
	name := strings.TrimSuffix(filepath.Base(creds), ".creds")
	nc, err := nats.Connect(url, append(unhurried(), login(creds, account), nats.CustomInboxPrefix(inboxPrefix(name)),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...) // errors must not go to standard error
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	quelltest.Until(t, "it is connected", nc.IsConnected)
	return &guest{nc}
}

// unhurried are the options of a client that connects in the end: by default NATS's client gives a
// server 2 s to let it in, once.
func unhurried() []nats.Option {
	return []nats.Option{nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond)}
}

// may calls do and reports whether the server allowed it.
func (g *guest) may(t *testing.T, do func() error) bool {
	t.Helper()
	before := g.LastError()
	if err := do(); err != nil {
		t.Fatalf("%v; the server's last error: %v", err, g.LastError())
	}
	// The server answers in order: a refusal arrives before the answer.
	if err := g.FlushTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	err := g.LastError()
	if err == before { // identity, not equality
		return true
	}
	if !errors.Is(err, nats.ErrPermissionViolation) {
		t.Fatal(err)
	}
	return false
}

// TestPermissions checks which operations the server allows to each role in each account,
// and no others.
func TestPermissions(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	openBus(t, a, url, 1)
	const own, other = "node.1", "node.2"
	js := "$JS.API.STREAM."
	publish := []string{wire.SampleSubject(own), wire.SampleSubject(other), wire.RecordSubject(own), wire.RecordSubject(other),
		"spec.web.p", "command.all", wire.CommandSubject(own), wire.CommandSubject(other), "$KV.specs.web.p", "$JS.API.DIRECT.GET.KV_specs.$KV.specs.web.p",
		wire.QuestionSubject(own), wire.QuestionSubject(other), wire.StateSubject(own), wire.StateSubject(other), wire.StateSubject(""), "$KV.decisions.all", "$JS.API.DIRECT.GET.KV_decisions.$KV.decisions.all", wire.RenewalSubject(own), wire.RenewalSubject(other), wire.RenewedSubject(own), "$JS.API.DIRECT.GET.KV_leases.$KV.leases.x",
		js + "PURGE.samples", js + "DELETE.samples", js + "MSG.GET.samples", js + "INFO.samples", "$JS.API.CONSUMER.CREATE.samples", "$JS.API.INFO",
		inboxPrefix(own) + ".x", inboxPrefix(other) + ".x", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.USER.INFO", "anything"}
	subscribe := []string{wire.SampleSubject(own), wire.AllSamples, wire.AllRecords, wire.AllSpecs, "spec.web.p", "command.all", "command.>",
		wire.CommandSubject(own), wire.CommandSubject(other), wire.AllStates, wire.OwnReplies(own), wire.OwnReplies(other),
		wire.AllRenewals, wire.RenewedSubject(own), wire.RenewedSubject(other), "renewed.*",
		inboxPrefix(own) + ".>", inboxPrefix(other) + ".>", ">", "$JS.>", "$KV.specs.>", "_R_.>", "anything"}
	type rights map[credential.Account][]string // "+" publishes, "-" subscribes
	for role, may := range map[authority.Role]rights{
		authority.Agent: {
			credential.Samples:  {"+" + wire.SampleSubject(own), "+" + wire.RecordSubject(own), "-" + inboxPrefix(own) + ".>"},
			credential.Specs:    {"-" + wire.AllSpecs, "-spec.web.p"},
			credential.Commands: {"+" + wire.QuestionSubject(own), "+" + wire.StateSubject(own), "+" + wire.RenewalSubject(own), "-command.all", "-" + wire.CommandSubject(own), "-" + wire.RenewedSubject(own)},
		},
		authority.Viewer: {
			credential.Samples: {"-" + wire.SampleSubject(own), "-" + wire.AllSamples, "-" + wire.AllRecords},
			credential.Specs:   {"-" + wire.AllSpecs, "-spec.web.p"},
		},
	} {
		creds := credentials(t, a, role, own, 0)
		for account, may := range may {
			t.Run(string(role)+" "+string(account), func(t *testing.T) {
				g := connect(t, url, creds, account)
				for _, subject := range publish {
					if got, want := g.may(t, func() error { return g.Publish(subject, nil) }), slices.Contains(may, "+"+subject); got != want {
						t.Errorf("publish %s: %v, want %v", subject, got, want)
					}
				}
				for _, subject := range subscribe {
					do := func() error { _, err := g.SubscribeSync(subject); return err }
					if got, want := g.may(t, do), slices.Contains(may, "-"+subject); got != want {
						t.Errorf("subscribe %s: %v, want %v", subject, got, want)
					}
				}
			})
		}
	}
	viewer, err := credential.Load(credentials(t, a, authority.Viewer, own, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := viewer.Token(credential.Commands); err == nil {
		t.Error("a viewer has credentials for the account of commands")
	}
}

// TestStrangers: a client without credentials, or whose credentials have expired, were
// changed, or were signed by another authority, is not accepted.
func TestStrangers(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	good := credentials(t, a, authority.Agent, "m", time.Hour)
	nc, err := nats.Connect(url, append(unhurried(), nats.UserCredentials(good))...)
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "a client with good credentials is let in", nc.IsConnected)
	nc.Close()
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "changed.creds")
	lines := strings.Split(string(text), "\n")
	i := len(lines[1]) / 2
	lines[1] = lines[1][:i] + string('A'+(lines[1][i]-'A'+1)%26) + lines[1][i+1:]
	if err := os.WriteFile(changed, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]nats.Option{
		"none":                     nats.Name("stranger"),
		"a password":               nats.UserInfo("quell", "secret"),
		"ended":                    nats.UserCredentials(credentials(t, a, authority.Server, "late", -time.Minute)),
		"of another authority":     nats.UserCredentials(credentials(t, newAuthority(t), authority.Server, "x", 0)),
		"changed after the signer": nats.UserCredentials(changed),
	} {
		nc, err := nats.Connect(url, option)
		if err == nil {
			nc.Close()
			t.Errorf("%s: let in", name)
		}
	}
}

// TestCredentialsEnd: an agent whose credentials expire while connected is disconnected,
// reports it, spools, and continues with new ones in the same file.
func TestCredentialsEnd(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	keep(t, openBus(t, a, url, 1))
	creds := credentials(t, a, authority.Agent, "m", 2*time.Second)
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: url, Name: "m", Credentials: creds, pause: 20 * time.Millisecond},
		Dir: t.TempDir(), MaxBytes: MinSpool})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	quelltest.Until(t, "it is sent away", func() bool {
		err := u.Err()
		// The account of specs may end its connection sooner.
		return err != nil && strings.Contains(strings.ToLower(err.Error()), "auth") && !u.Stats().Connected
	})
	u.Samples(1, samples("m", 1))
	quelltest.Until(t, "the batch waits", func() bool { return u.Stats().Waiting == 1 })
	text, err := a.Issue(authority.Agent, "m", time.Hour)
	if err == nil {
		err = os.WriteFile(creds, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it is taken", func() bool { return u.Stats().Waiting == 0 && u.Err() == nil })
}

// TestForged: a message that names a machine other than its sender's is detected.
func TestForged(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	g := connect(t, url, credentials(t, a, authority.Agent, "liar", 0), credential.Samples)
	batch := wire.Batch{Key: wire.Key{Machine: "victim", Boot: "b", N: 1 << 60}, Samples: samples("victim", 1)}
	data, err := batch.Encode()
	if err != nil {
		t.Fatal(err)
	}
	record, err := wire.Marshal(&wire.Record{Machine: "victim", Boot: "b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	for stream, data := range map[Stream][]byte{Samples: data, Records: record} {
		c, err := b.Consume(patient(t), stream)
		if err != nil {
			t.Fatal(err)
		}
		subject := map[Stream]string{Samples: wire.SampleSubject("liar"), Records: wire.RecordSubject("liar")}[stream]
		if err := g.Publish(subject, data); err != nil {
			t.Fatal(err)
		}
		m := fetch(t, c, 1)[0]
		c.Close()
		var forged *ForgedError
		if stream == Samples {
			err = m.Batch(&wire.Batch{})
		} else {
			_, err = m.Record()
		}
		if !errors.As(err, &forged) || forged.Machine != "victim" {
			t.Errorf("%s: %v", fmt.Sprint(stream), err)
		}
	}
}
