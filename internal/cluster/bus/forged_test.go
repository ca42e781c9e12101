package bus

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// signing makes decisions with the given credentials' signature, as they are.
func signing(t *testing.T, creds, machine string, change func(*wire.Decisions)) []byte {
	t.Helper()
	now := time.Now()
	one := decision("forged", 0, off())
	d := &wire.Decisions{Machine: machine, Revision: uint64(now.UnixNano()), Signed: now.UnixMilli(), Fresh: now.Add(freshFor).UnixMilli(), List: []*wire.Command{wire.EncodeDecision(&one)}}
	change(d)
	data, err := sign(creds, d)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func asIs(*wire.Decisions) {}

func marshal(t *testing.T, m wire.Message) []byte {
	t.Helper()
	data, err := wire.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// settled sends a message that changes nothing, and returns when the agent has read it, and so
// all that came before.
func settled(t *testing.T, g *guest, m *obedient, machine string) {
	t.Helper()
	forged := m.Stats().Forged
	if err := g.Publish(wire.CommandSubject(machine), []byte("the last one")); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "the agent has read all", func() bool { return m.Stats().Forged > forged })
}

// TestAttackDecisionsThatTheServerHasNotSigned: even a client that may publish everything in
// the account of commands has no agent follow what the server has not signed for that
// machine, lately.
func TestAttackDecisionsThatTheServerHasNotSigned(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := serveDecisions(t, openBus(t, a, url, 1))
	m2 := obey(t, follower(t, a, url, "m2"))
	quelltest.Until(t, "the agent has that there are none", func() bool { s := b.state("m2"); return s != nil && s.All > 0 })
	changes := m2.decided.Load()
	server, agent := credentials(t, a, authority.Server, "server", 0), credentials(t, a, authority.Agent, "m1", 0)
	stranger := credentials(t, newAuthority(t), authority.Server, "server", 0)
	late := credentials(t, a, authority.Server, "late", -time.Minute)
	g := connect(t, url, server, credential.Commands)
	altered := func(change func(*wire.SignedDecisions)) []byte {
		var m wire.SignedDecisions
		if err := wire.Unmarshal(signing(t, server, "m2", asIs), &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		return marshal(t, &m)
	}
	own, err := credential.Load(agent)
	if err != nil {
		t.Fatal(err)
	}
	token, err := own.Token(credential.Commands)
	if err != nil {
		t.Fatal(err)
	}
	var unsigned wire.SignedDecisions
	if err := wire.Unmarshal(signing(t, server, "m2", asIs), &unsigned); err != nil {
		t.Fatal(err)
	}
	forged := m2.Stats().Forged
	for name, data := range map[string][]byte{
		"decisions without a signature": unsigned.Decisions,
		"specs":                         marshal(t, wire.SpecsOf("m2", "p", 1<<60, nil)),
		"an acknowledgement of NATS":    []byte(`{"stream":"samples","seq":1}`),
		"nothing":                       nil,
		"another authority's":           signing(t, stranger, "m2", asIs),
		"an expired server's":           signing(t, late, "m2", asIs),
		"an agent's JWT":                altered(func(m *wire.SignedDecisions) { m.Signer = token }),
		"a changed signature":           altered(func(m *wire.SignedDecisions) { m.Signature[0] ^= 1 }),
		"no signature":                  altered(func(m *wire.SignedDecisions) { m.Signature = nil }),
		"another signature": altered(func(m *wire.SignedDecisions) {
			var other wire.SignedDecisions
			if err := wire.Unmarshal(signing(t, server, "m2", func(d *wire.Decisions) { d.List = nil }), &other); err != nil {
				t.Fatal(err)
			}
			m.Signature = other.Signature
		}),
		"specs, signed": func() []byte {
			f, err := credential.Load(server)
			if err != nil {
				t.Fatal(err)
			}
			m := &wire.SignedDecisions{Decisions: marshal(t, wire.SpecsOf("m2", "p", 1, nil))}
			s, err := f.Sign(m.Decisions)
			if err != nil {
				t.Fatal(err)
			}
			m.Signer, m.Signature = s.Signer, s.Bytes
			return marshal(t, m)
		}(),
	} {
		for _, subject := range []string{wire.CommandSubject("m2"), wire.CommandAll} {
			if err := g.Publish(subject, data); err != nil {
				t.Fatal(err)
			}
			forged++
		}
		quelltest.Until(t, name+" is refused", func() bool { return m2.Stats().Forged == forged })
	}
	now := time.Now()
	for name, data := range map[string][]byte{
		"for another machine": signing(t, server, "m1", asIs),
		"without a revision":  signing(t, server, "m2", func(d *wire.Decisions) { d.Revision = 0 }),
		"signed last week": signing(t, server, "m2", func(d *wire.Decisions) {
			d.Signed, d.Fresh = now.AddDate(0, 0, -7).UnixMilli(), now.AddDate(0, 0, -6).UnixMilli()
		}),
		"fresh for a year": signing(t, server, "m2", func(d *wire.Decisions) { d.Fresh = now.AddDate(1, 0, 0).UnixMilli() }),
		"signed next week": signing(t, server, "m2", func(d *wire.Decisions) {
			d.Signed, d.Fresh = now.AddDate(0, 0, 7).UnixMilli(), now.AddDate(0, 0, 8).UnixMilli()
		}),
		"before there was a time": signing(t, server, "m2", func(d *wire.Decisions) { d.Fresh = -1 << 62 }),
	} {
		if err := g.Publish(wire.CommandSubject("m2"), data); err != nil {
			t.Fatal(err)
		}
		if settled(t, g, m2, "m2"); m2.decided.Load() != changes || len(m2.Decisions()) != 0 {
			t.Fatalf("%s: it follows %v", name, m2.Decisions())
		}
	}
	b.add(t, "m2", decision("own", 0, off()))
	quelltest.Until(t, "it follows the server's own", m2.has("own"))
}

// TestAttackReplayedAndReorderedDecisions: decisions that the server has signed do not come back
// once a later revision has come: not on their own subject or another, not for the agent's next
// run, and not with another machine.
func TestAttackReplayedAndReorderedDecisions(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	openBus(t, a, url, 1) // without it no server brings the agent up to date
	o := follower(t, a, url, "m2")
	m2, m3 := obey(t, o), obey(t, follower(t, a, url, "m3"))
	for _, m := range []*obedient{m2, m3} {
		quelltest.Until(t, "the agent listens", func() bool { return m.Err() == nil && m.commands.ask(t.Context()) == nil })
	}
	server := credentials(t, a, authority.Server, "server", 0)
	g := connect(t, url, server, credential.Commands)
	at := uint64(time.Now().UnixNano())
	making := func(machine, id string, revision uint64) []byte {
		one := decision(id, 0, off())
		return signing(t, server, machine, func(d *wire.Decisions) { d.Revision, d.List = revision, []*wire.Command{wire.EncodeDecision(&one)} })
	}
	first, second, third, revoked := making("m2", "1", at), making("", "2", at), making("m2", "3", at+2), signing(t, server, "m2", func(d *wire.Decisions) { d.Revision, d.List = at+3, nil })
	one, all := wire.CommandSubject("m2"), wire.CommandAll
	for i, c := range []struct {
		subject string
		data    []byte
		want    string
	}{{one, first, "1"}, {one, first, "1"}, {all, second, "2 1"}, {one, third, "2 3"}, {all, first, "2 3"}, {one, first, "2 3"}, {all, making("", "old", at-1), "2 3"},
		{one, revoked, "2"}, {one, third, "2"}, {all, third, "2"}} {
		if err := g.Publish(c.subject, c.data); err != nil {
			t.Fatal(err)
		}
		settled(t, g, m2, "m2")
		if got := strings.Join(m2.stand(), " "); got != c.want {
			t.Errorf("message %d: %q stand, want %q", i, got, c.want)
		}
	}
	if err := g.Publish(wire.CommandSubject("m3"), third); err != nil { // a NATS server that is not honest could
		t.Fatal(err)
	}
	if settled(t, g, m3, "m3"); !m3.has("2")() {
		t.Errorf("another machine's are followed: %q", m3.stand())
	}
	if err := m2.Close(); err != nil {
		t.Fatal(err)
	}
	again := obey(t, o)
	quelltest.Until(t, "the agent listens", func() bool { return again.Err() == nil && again.commands.ask(t.Context()) == nil })
	for _, data := range [][]byte{third, first, making("", "old", at-1)} {
		if err := g.Publish(one, data); err != nil {
			t.Fatal(err)
		}
	}
	if settled(t, g, again, "m2"); !again.has("2")() {
		t.Errorf("after a restart %q stand", again.stand())
	}
}

// TestAttackStateOfAnother: a machine says what another has, and claims to have what nothing has
// yet. Only each machine's own state counts, it is cut, and no agent is misled.
func TestAttackStateOfAnother(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := serveDecisions(t, openBus(t, a, url, 1))
	m2 := obey(t, follower(t, a, url, "m2"))
	first := b.add(t, "", decision("mode", 0, off()))
	quelltest.Until(t, "m2 has it", func() bool { s := b.state("m2"); return s != nil && s.All == first && len(s.Outcomes) == 1 })
	g := connect(t, url, credentials(t, a, authority.Agent, "m1", 0), credential.Commands)
	long := &wire.State{Machine: "m1", Mode: strings.Repeat("x", 100_000), All: 1 << 63, Own: 1 << 63}
	for range 1000 {
		long.Outcomes = append(long.Outcomes, &wire.Reply{Id: "x", Message: strings.Repeat("y", 200), Refused: []string{""}})
	}
	lie := marshal(t, &wire.State{Machine: "m2", Mode: "on", All: 1 << 63})
	for _, subject := range []string{wire.StateSubject("m1"), wire.StateSubject("m2"), wire.StateSubject(""), wire.CommandAll, wire.CommandSubject("m2")} {
		for _, data := range [][]byte{lie, nil, []byte("junk"), bytes.Repeat([]byte{0xff}, 100)} {
			if err := g.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{"Status": {"503"}}, Data: data}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 50 { // as if it had decisions of the future, and of a moment ago
		if err := g.Publish(wire.StateSubject("m1"), marshal(t, &wire.State{Machine: "m1", Mode: "on", All: uint64(time.Now().UnixNano())})); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Publish(wire.StateSubject("m1"), marshal(t, long)); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "m1's own has come", func() bool { s := b.state("m1"); return s != nil && strings.HasPrefix(s.Mode, "xx") })
	if s := b.state("m1"); len(s.Mode) > maxReplyText+8 || len(s.Outcomes) > 200 || cap(s.Outcomes) > 300 {
		t.Errorf("m1's state is not cut, or is still in memory")
	}
	if s := b.state("m2"); s.Mode != "advise" || !m2.has("mode")() {
		t.Errorf("m2: %v; %q stand", s, m2.stand())
	}
	// At most one new revision was made because of m1, with what stood.
	quelltest.Until(t, "m2 has the newest", func() bool { return b.state("m2").All == b.Decisions()[0].Revision })
	if n := m2.decided.Load(); n > 3 { // that there are none; the mode; and that
		t.Errorf("m2 was sent %d revisions", n)
	}
}

// TestNoDecisionsWithoutCredentials: an agent that has no credentials cannot know whose a
// decision is.
func TestNoDecisionsWithoutCredentials(t *testing.T) {
	a := newAuthority(t)
	data := signing(t, credentials(t, a, authority.Server, "server", 0), "m2", asIs)
	for name, creds := range map[string]string{"none": "", "a viewer's": credentials(t, a, authority.Viewer, "v", 0), "missing": filepath.Join(t.TempDir(), "x")} {
		if changed, err := openGate("m2", t.TempDir(), creds).open(data, time.Now()); err == nil || changed {
			t.Errorf("%s: it would follow", name)
		}
	}
	if changed, err := openGate("m2", t.TempDir(), credentials(t, a, authority.Agent, "m2", 0)).open(data, time.Now()); err != nil || !changed {
		t.Errorf("%v, %v", changed, err)
	}
}
