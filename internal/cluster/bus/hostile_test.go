package bus

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// obedient is an agent that counts the commands that it carries out.
type obedient struct {
	*Uplink
	commands atomic.Int64
	last     atomic.Pointer[wire.Command]
}

func obey(t *testing.T, a *authority.Authority, url, machine string) *obedient {
	t.Helper()
	o := &obedient{}
	o.Uplink = openUplink(t, a, url, machine, func(_ context.Context, c *wire.Command) *wire.Reply {
		o.commands.Add(1)
		o.last.Store(c)
		return &wire.Reply{Ok: true, Message: "done"}
	})
	quelltest.Until(t, "the agent listens", func() bool { return o.Err() == nil && o.Uplink.commands.ask(t.Context()) == nil })
	return o
}

func off(who string) *wire.Command {
	return &wire.Command{Id: "x1", Who: who, Why: "r", Do: &wire.Command_Enforcement_{Enforcement: &wire.Command_Enforcement{Mode: "off"}}}
}

// resign encodes a command with the given credentials' signature, as they are.
func resign(t *testing.T, creds string, c *wire.Command) []byte {
	t.Helper()
	data, err := sign(creds, c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestAttackCommandsThatTheServerHasNotSigned: even a client that may publish everything in
// the account of commands has no agent carry out what the server has not signed for that
// machine, now, once.
func TestAttackCommandsThatTheServerHasNotSigned(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	m2 := obey(t, a, url, "m2")
	server, agent := credentials(t, a, authority.Server, "server", 0), credentials(t, a, authority.Agent, "m1", 0)
	stranger := credentials(t, newAuthority(t), authority.Server, "server", 0)
	late := credentials(t, a, authority.Server, "late", -time.Minute)
	g := connect(t, url, server, credential.Commands)
	now := func() uint64 { return uint64(time.Now().UnixNano()) }
	soon := func() int64 { return time.Now().Add(validFor).UnixMilli() }
	signed := func(creds string, change func(*wire.Command)) []byte {
		c := off("mallory")
		c.Machine, c.Sequence, c.Expires = "m2", now(), soon()
		change(c)
		return resign(t, creds, c)
	}
	altered := func(change func(*wire.SignedCommand)) []byte {
		var m wire.SignedCommand
		if err := wire.Unmarshal(signed(server, func(*wire.Command) {}), &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		data, err := wire.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	marshal := func(m wire.Message) []byte {
		data, err := wire.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	own, err := credential.Load(agent)
	if err != nil {
		t.Fatal(err)
	}
	token, err := own.Token(credential.Commands)
	if err != nil {
		t.Fatal(err)
	}
	forged := m2.Stats().Forged
	for name, data := range map[string][]byte{
		"a command without a signature": marshal(off("mallory")),
		"specs":                         marshal(wire.SpecsOf("m2", "p", 1<<60, nil)),
		"an acknowledgement of NATS":    []byte(`{"stream":"samples","seq":1}`),
		"nothing":                       nil,
		"another authority's":           signed(stranger, func(*wire.Command) {}),
		"an expired server's":           signed(late, func(*wire.Command) {}),
		"an agent's JWT":                altered(func(m *wire.SignedCommand) { m.Signer = token }),
		"a changed command": altered(func(m *wire.SignedCommand) {
			c := off("mallory")
			c.Machine, c.Sequence, c.Expires = "m2", now(), soon()
			m.Command = marshal(c)
		}),
		"a changed signature": altered(func(m *wire.SignedCommand) { m.Signature[0] ^= 1 }),
		"no signature":        altered(func(m *wire.SignedCommand) { m.Signature = nil }),
		"specs, signed": func() []byte {
			f, err := credential.Load(server)
			if err != nil {
				t.Fatal(err)
			}
			m := &wire.SignedCommand{Command: marshal(wire.SpecsOf("m2", "p", 1, nil))}
			s, err := f.Sign(m.Command)
			if err != nil {
				t.Fatal(err)
			}
			m.Signer, m.Signature = s.Signer, s.Bytes
			return marshal(m)
		}(),
	} {
		for _, subject := range []string{wire.CommandSubject("m2"), wire.CommandAll} {
			if err := g.PublishRequest(subject, wire.ReplySubject("m2", "x1"), data); err != nil {
				t.Fatal(err)
			}
			forged++
		}
		quelltest.Until(t, name+" is refused", func() bool { return m2.Stats().Forged == forged })
	}
	replies, err := g.SubscribeSync(wire.AllReplies("x1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"for another machine":             signed(server, func(c *wire.Command) { c.Machine = "m1" }),
		"an operator without a name":      signed(server, func(c *wire.Command) { c.Who = " " }),
		"expired":                         signed(server, func(c *wire.Command) { c.Expires = time.Now().Add(-time.Second).UnixMilli() }),
		"without an end":                  signed(server, func(c *wire.Command) { c.Expires = 0 }),
		"valid for a year":                signed(server, func(c *wire.Command) { c.Expires = time.Now().AddDate(1, 0, 0).UnixMilli() }),
		"of before the agent's start":     signed(server, func(c *wire.Command) { c.Sequence = uint64(m2.gate.opened.Add(-time.Second).UnixNano()) }),
		"without a number":                signed(server, func(c *wire.Command) { c.Sequence = 0 }),
		"a cap of ten years, by its end":  signed(server, func(c *wire.Command) { c.Expires = 1 << 62 }),
		"expired before there was a time": signed(server, func(c *wire.Command) { c.Expires = -1 << 62 }),
	} {
		if err := g.Publish(wire.CommandSubject("m2"), data); err != nil {
			t.Fatal(err)
		}
		m, err := replies.NextMsg(4 * time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var r wire.Reply
		if err := wire.Unmarshal(m.Data, &r); err != nil || r.Ok || !strings.HasPrefix(r.Message, "refused: ") || m.Subject != wire.ReplySubject("m2", "x1") {
			t.Errorf("%s: %s: %v, %v", name, m.Subject, &r, err)
		}
	}
	if n := m2.commands.Load(); n != 0 {
		t.Fatalf("%d were carried out, the last is %v", n, m2.last.Load())
	}
	if r, err := b.Command(t.Context(), "m2", off("anna")); err != nil || !r.Ok || m2.commands.Load() != 1 || m2.last.Load().Who != "anna" {
		t.Errorf("the server's own: %v, %v", r, err)
	}
}

// TestAttackReplayedAndReorderedCommands: a command that the server has signed is carried
// out once, not after a later one, and not by the agent's next run.
func TestAttackReplayedAndReorderedCommands(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	openBus(t, a, url, 1)
	m2 := obey(t, a, url, "m2")
	server := credentials(t, a, authority.Server, "server", 0)
	g := connect(t, url, server, credential.Commands)
	replies, err := g.SubscribeSync(wire.AllReplies("x1"))
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(time.Now().UnixNano())
	make := func(machine string, sequence uint64) []byte {
		c := off("anna")
		c.Machine, c.Sequence, c.Expires = machine, sequence, time.Now().Add(5*time.Minute).UnixMilli()
		return resign(t, server, c)
	}
	first, second, third := make("m2", at), make("", at+1), make("m2", at+2)
	send := func(subject string, data []byte) *wire.Reply {
		t.Helper()
		if err := g.Publish(subject, data); err != nil {
			t.Fatal(err)
		}
		m, err := replies.NextMsg(4 * time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var r wire.Reply
		if err := wire.Unmarshal(m.Data, &r); err != nil {
			t.Fatal(err)
		}
		return &r
	}
	one, all := wire.CommandSubject("m2"), wire.CommandAll
	for i, c := range []struct {
		subject string
		data    []byte
		ok      bool
	}{{one, first, true}, {one, first, false}, {all, first, false}, {one, third, true}, {all, second, false}, {one, third, false}} {
		if r := send(c.subject, c.data); r.Ok != c.ok {
			t.Errorf("command %d: %v, want %v", i, r, c.ok)
		}
	}
	if err := m2.Close(); err != nil {
		t.Fatal(err)
	}
	again := obey(t, a, url, "m2")
	if r := send(one, third); r.Ok || again.commands.Load() != 0 {
		t.Errorf("after a restart: %v", r)
	}
	if n := m2.commands.Load(); n != 2 {
		t.Errorf("%d were carried out, want 2", n)
	}
}

// TestAttackAnswersOfNATSToSubjectsOfOthers: NATS sends its own answers to any subject that
// a client names. None reaches a command's subject or a reply's, and what reaches
// another machine's stream is no batch.
func TestAttackAnswersOfNATSToSubjectsOfOthers(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	m2 := obey(t, a, url, "m2")
	// What m1 can make the server store: specs of a job that is named like m2, on a
	// platform that is named like m2's run, with a high revision.
	key := spec.Key{Job: "m2", Platform: sample.Platform(m2.boot), Signal: sample.CPI, Variant: "v"}
	if err := b.PutSpecs(t.Context(), wire.SpecsOf("m2", sample.Platform(m2.boot), 1<<40, []spec.Spec{{Key: key, State: spec.Ready, Mean: 1}})); err != nil {
		t.Fatal(err)
	}
	if err := b.PutSpecs(t.Context(), wire.SpecsOf("other", "p", 7, nil)); err != nil {
		t.Fatal(err)
	}
	m2.WatchSpecs("p", []sample.JobName{"other"})
	m2.Samples(1, samples("m2", 3))
	quelltest.Until(t, "m2's first batch is in the stream", func() bool { return m2.Stats().Sent == 1 })
	creds := credentials(t, a, authority.Agent, "m1", 0)
	batch := wire.Batch{Key: wire.Key{Machine: "m1", Boot: "b", N: 1}, Samples: samples("m1", 1)}
	own, err := batch.Encode()
	if err != nil {
		t.Fatal(err)
	}
	get := directGet(wire.SpecKey("m2", m2.boot))
	targets := []string{wire.SampleSubject("m2"), wire.RecordSubject("m2"), wire.CommandAll, wire.CommandSubject("m2"), wire.ReplySubject("m2", "x1"),
		wire.SpecSubject("m2", m2.boot), inboxPrefix("m2") + ".x", "$JS.API.STREAM.PURGE.samples", "$JS.API.STREAM.DELETE.samples",
		"$KV.specs.other.p", "$KV.leases.lead", wire.SpecSubject("other", "p")}
	for _, reply := range targets {
		for account, requests := range map[credential.Account]map[string][]byte{
			credential.Samples:  {wire.SampleSubject("m1"): own, get: nil},
			credential.Specs:    {get: nil, wire.SampleSubject("m1"): own},
			credential.Commands: {wire.ReplySubject("m1", "x1"): own, get: nil},
		} {
			g := connect(t, url, creds, account)
			for subject, data := range requests {
				if err := g.PublishRequest(subject, reply, data); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.FlushTimeout(time.Minute); err != nil {
				t.Fatal(err)
			}
			g.Close()
		}
	}
	m2.Samples(2, samples("m2", 3))
	m2.Record(2, wire.Record_KIND_AUDIT, "i", []byte(`{}`))
	quelltest.Until(t, "m2 is acknowledged", func() bool { return m2.Stats().Sent == 3 })
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	info, err := c.stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var numbers []uint64
	attempts := 0
	for _, m := range fetch(t, c, int(info.State.Msgs)) {
		var got wire.Batch
		if err := m.Batch(&got); err != nil {
			t.Errorf("%q came on %s: %v", m.Data, m.Subject, err)
			continue
		}
		if got.Machine == "m2" {
			numbers = append(numbers, got.N)
		} else {
			attempts++
		}
	}
	if attempts != len(targets) {
		t.Errorf("%d of m1's own batches came, want %d: the attack was not made", attempts, len(targets))
	}
	if len(numbers) != 2 || numbers[0] != 1 || numbers[1] != 2 {
		t.Errorf("m2's batches are %d", numbers)
	}
	if m2.commands.Load() != 0 || m2.Stats().Forged != 0 {
		t.Errorf("%d commands were carried out; %d messages came as commands", m2.commands.Load(), m2.Stats().Forged)
	}
	for job, want := range map[string]uint64{"m2": 1 << 40, "other": 7} {
		platform := map[string]string{"m2": m2.boot, "other": "p"}[job]
		if kept, err := storedSpecs(t.Context(), b, job, platform); err != nil || kept == nil || kept.Job != job || kept.Revision != want {
			t.Errorf("the specs of %s are %v, %v", job, kept, err)
		}
	}
	if err := m2.Err(); err != nil {
		t.Errorf("m2 is disturbed: %v", err)
	}
}

// TestAttackAnsweringForAnother: a machine answers a command to all as another, many times,
// and as if no machine listened. Only each machine's own first answer counts.
func TestAttackAnsweringForAnother(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	m2 := obey(t, a, url, "m2")
	g := connect(t, url, credentials(t, a, authority.Agent, "m1", 0), credential.Commands)
	answered := make(chan struct{})
	_, err := g.Subscribe(wire.CommandAll, func(m *nats.Msg) {
		defer close(answered)
		var signed wire.SignedCommand
		var c wire.Command
		if err := wire.Unmarshal(m.Data, &signed); err != nil || wire.Unmarshal(signed.Command, &c) != nil {
			t.Error("it cannot read the command")
		}
		lie, err := wire.Marshal(&wire.Reply{Id: c.Id, Machine: "m2", Ok: true, Message: "m2: done \x1b[2J"})
		if err != nil {
			t.Error(err)
		}
		long, err := wire.Marshal(&wire.Reply{Id: c.Id, Machine: "m1", Ok: true, Message: strings.Repeat("x", 500_000), Refused: make([]string, 100_000)})
		if err != nil {
			t.Error(err)
		}
		none := &nats.Msg{Header: nats.Header{"Status": {"503"}}}
		for _, subject := range []string{wire.ReplySubject("m2", c.Id), wire.ReplySubject("m1", c.Id), wire.ReplySubject("", c.Id), m.Reply, wire.CommandAll} {
			none.Subject = subject
			if err := g.PublishMsg(none); err != nil {
				t.Error(err)
			}
			for _, data := range [][]byte{lie, nil, []byte("junk"), m.Data, long, long} {
				if err := g.Publish(subject, data); err != nil {
					t.Error(err)
				}
			}
		}
		if err := g.FlushTimeout(time.Minute); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = g.FlushTimeout(time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, enough := context.WithTimeout(t.Context(), 4*time.Minute)
	defer enough()
	replies := map[string]*wire.Reply{}
	n := 0
	err = b.CommandAll(ctx, off("anna"), func(r *wire.Reply) {
		n++
		replies[r.Machine] = r
		if len(replies) == 2 {
			<-answered
			enough()
		}
	})
	if err != nil || n != 2 || replies["m2"] == nil || replies["m2"].Message != "done" || m2.commands.Load() != 1 {
		t.Fatalf("%d replies: %v, %v", n, replies, err)
	}
	if r := replies["m1"]; r == nil || len(r.Message) > maxReplyText+8 || len(r.Refused) > maxRefused {
		t.Errorf("m1's own reply is not cut")
	}
}

// TestAttackMessagesThatLookLikeNATSs: messages with the headers of NATS's own do not stop
// the reader of the stream.
func TestAttackMessagesThatLookLikeNATSs(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	g := connect(t, url, credentials(t, a, authority.Agent, "m1", 0), credential.Samples)
	headers := []nats.Header{{"Status": {"503"}}, {"Status": {"100"}}, {"Status": {"404"}}, {"Status": {"400"}}, {"Status": {"408"}, "Nats-Pending-Messages": {"8192"}},
		{"Status": {"409"}, "Description": {"Consumer Deleted"}}, {"Status": {"409"}, "Description": {"Leadership Change"}}, {"Status": {"423"}},
		{"Nats-Expected-Stream": {"samples"}}, {"Nats-Msg-Id": {"x"}}, {"Nats-Rollup": {"all"}}, {"Nats-TTL": {"1s"}}, {"KV-Operation": {"PURGE"}}}
	stored := 0
	for _, h := range headers {
		for _, data := range [][]byte{nil, []byte("x")} {
			ack, err := g.RequestMsg(&nats.Msg{Subject: wire.SampleSubject("m1"), Header: h, Data: data}, 4*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(ack.Data), `"error"`) && !strings.Contains(string(ack.Data), `"duplicate"`) {
				stored++
			}
		}
	}
	u := openUplink(t, a, url, "m2", nil)
	u.Samples(1, samples("m2", 1))
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all := fetch(t, c, stored+1)
	var got wire.Batch
	if err := all[stored].Batch(&got); err != nil || got.Machine != "m2" || stored < 16 {
		t.Errorf("after %d messages came %+v, %v", stored, got, err)
	}
}

// TestAttackInventedRuns: names and numbers that no agent uses are refused, so that a
// machine cannot fill what a reader remembers.
func TestAttackInventedRuns(t *testing.T) {
	for name, k := range map[string]wire.Key{
		"no run":     {Machine: "m1", N: 1},
		"a long run": {Machine: "m1", Boot: strings.Repeat("x", 65), N: 1},
		"no number":  {Machine: "m1", Boot: "b"},
	} {
		b := wire.Batch{Key: k, Samples: samples("m1", 1)}
		data, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		m := Message{Subject: wire.SampleSubject("m1"), Data: data}
		if err := m.Batch(&wire.Batch{}); err == nil {
			t.Errorf("%s: a batch was accepted", name)
		}
		if data, err = wire.Marshal(&wire.Record{Machine: k.Machine, Boot: k.Boot, N: k.N}); err != nil {
			t.Fatal(err)
		}
		m = Message{Subject: wire.RecordSubject("m1"), Data: data}
		if _, err := m.Record(); err == nil {
			t.Errorf("%s: a record was accepted", name)
		}
	}
}

// TestNoCommandsWithoutCredentials: an agent that has no credentials cannot know whose a
// command is.
func TestNoCommandsWithoutCredentials(t *testing.T) {
	a := newAuthority(t)
	server := credentials(t, a, authority.Server, "server", 0)
	c := off("anna")
	c.Sequence, c.Expires = uint64(time.Now().UnixNano()), time.Now().Add(time.Minute).UnixMilli()
	data := resign(t, server, c)
	for name, creds := range map[string]string{"none": "", "a viewer's": credentials(t, a, authority.Viewer, "v", 0), "missing": filepath.Join(t.TempDir(), "x")} {
		g := &gate{machine: "m2", credentials: creds, last: map[string]uint64{}}
		if got, err := g.open(data, time.Now()); err == nil {
			t.Errorf("%s: it would carry out %v", name, got)
		}
	}
	g := &gate{machine: "m2", credentials: credentials(t, a, authority.Agent, "m2", 0), opened: time.Now().Add(-time.Minute), last: map[string]uint64{}}
	if _, err := g.open(data, time.Now()); err != nil {
		t.Error(err)
	}
}
