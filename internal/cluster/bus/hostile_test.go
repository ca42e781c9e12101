package bus

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
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

// TestAttackAnswersToSubjectsOfOthers: NATS sends its own answers to any subject that a client
// names, and a server of quell would. None reaches a subject of decisions, of a state, or of
// another machine.
func TestAttackAnswersToSubjectsOfOthers(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	m2 := obey(t, follower(t, a, url, "m2"))
	quelltest.Until(t, "the agent listens", func() bool { return m2.Err() == nil && m2.commands.ask(t.Context()) == nil })
	// What m1 can make the server store: specs of a job that is named like m2, on a
	// platform that is named like m2's run, with a high revision.
	key := spec.Key{Job: "m2", Platform: sample.Platform(m2.boot), Signal: sample.CPI, Variant: "v"}
	if err := b.PutSpecs(patient(t), wire.SpecsOf("m2", sample.Platform(m2.boot), 1<<40, []spec.Spec{{Key: key, State: spec.Ready, Mean: 1}})); err != nil {
		t.Fatal(err)
	}
	if err := b.PutSpecs(patient(t), wire.SpecsOf("other", "p", 7, nil)); err != nil {
		t.Fatal(err)
	}
	k, _ := keep(t, b)
	records, err := b.Consume(patient(t), Records)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	m2.WatchSpecs("p", []sample.JobName{"other"})
	m2.Samples(1, samples("m2", 3))
	quelltest.Until(t, "m2's first batch is stored", func() bool { return m2.Stats().Sent == 1 })
	// Whatever reaches a subject of m2 in the account of samples, from another than m2.
	heard := make(chan *nats.Msg, 1000)
	listener := connect(t, url, credentials(t, a, authority.Agent, "m2", 0), credential.Samples)
	if _, err := listener.ChanSubscribe(inboxPrefix("m2")+".x", heard); err != nil {
		t.Fatal(err)
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	creds := credentials(t, a, authority.Agent, "m1", 0)
	n := uint64(0)
	own := func() []byte {
		n++
		batch := wire.Batch{Key: wire.Key{Machine: "m1", Boot: "b", N: n}, Samples: samples("m1", 1)}
		data, err := batch.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	get := "$JS.API.DIRECT.GET.KV_specs.$KV.specs." + wire.SpecKey("m2", m2.boot) // what agents of earlier versions might do
	ask, err := wire.Marshal(&wire.Specs{Job: "m2", Platform: m2.boot})
	if err != nil {
		t.Fatal(err)
	}
	targets := []string{wire.SampleSubject("m2"), wire.RecordSubject("m2"), wire.CommandAll, wire.CommandSubject("m2"), wire.StateSubject("m2"), "$KV.decisions.all",
		wire.SpecSubject("m2", m2.boot), inboxPrefix("m2") + ".x", "$JS.API.STREAM.PURGE.samples", "$JS.API.STREAM.DELETE.samples",
		"$KV.specs.other.p", "$KV.leases.lead", wire.SpecSubject("other", "p")}
	for _, reply := range targets {
		for account, requests := range map[credential.Account]map[string][]byte{
			credential.Samples:  {wire.SampleSubject("m1"): own(), get: nil},
			credential.Specs:    {get: nil, wire.SampleSubject("m1"): []byte("x")},
			credential.Commands: {wire.StateSubject("m1"): []byte("x"), wire.QuestionSubject("m1"): ask, get: nil},
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
	records.Ack(fetch(t, records, 1)[0].Seq)
	quelltest.Until(t, "m2 is acknowledged", func() bool { return m2.Stats().Sent == 3 })
	quelltest.Until(t, "m1's own batches have all come: the attack was made", func() bool { return len(k.of("m1")) == len(targets) })
	if got := k.of("m2"); len(got) != 2 || got[0] != 1 || got[1] != 2 {
		t.Errorf("m2's batches are %d", got)
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, wrong := range k.wrong {
		t.Error(wrong)
	}
	if len(heard) > 0 {
		t.Errorf("m2 was sent %q", (<-heard).Data)
	}
	if m2.decided.Load() != 0 || m2.Stats().Forged != 0 {
		t.Errorf("decisions changed %d times; %d messages came as decisions", m2.decided.Load(), m2.Stats().Forged)
	}
	for job, want := range map[string]uint64{"m2": 1 << 40, "other": 7} {
		platform := map[string]string{"m2": m2.boot, "other": "p"}[job]
		if kept, err := storedSpecs(patient(t), b, job, platform); err != nil || kept == nil || kept.Job != job || kept.Revision != want {
			t.Errorf("the specs of %s are %v, %v", job, kept, err)
		}
	}
	if err := m2.Err(); err != nil {
		t.Errorf("m2 is disturbed: %v", err)
	}
}

// TestAttackMessagesThatLookLikeNATSs: messages with the headers of NATS's own do not stop
// the reader.
func TestAttackMessagesThatLookLikeNATSs(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	c, err := b.Consume(patient(t), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g := connect(t, url, credentials(t, a, authority.Agent, "m1", 0), credential.Samples)
	headers := []nats.Header{{"Status": {"503"}}, {"Status": {"100"}}, {"Status": {"404"}}, {"Status": {"400"}}, {"Status": {"408"}, "Nats-Pending-Messages": {"8192"}},
		{"Status": {"409"}, "Description": {"Consumer Deleted"}}, {"Status": {"409"}, "Description": {"Leadership Change"}}, {"Status": {"423"}},
		{"Nats-Expected-Stream": {"samples"}}, {"Nats-Msg-Id": {"x"}}, {"Nats-Rollup": {"all"}}, {"Nats-TTL": {"1s"}}, {"KV-Operation": {"PURGE"}}}
	sent := 0
	for _, h := range headers {
		for _, data := range [][]byte{nil, []byte("x")} {
			if err := g.PublishMsg(&nats.Msg{Subject: wire.SampleSubject("m1"), Header: h, Data: data}); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	if err := g.Flush(); err != nil {
		t.Fatal(err)
	}
	u := openUplink(t, a, url, "m2", nil)
	u.Samples(1, samples("m2", 1))
	all := fetch(t, c, sent+1)
	var got wire.Batch
	if err := all[sent].Batch(&got); err != nil || got.Machine != "m2" {
		t.Errorf("after %d messages came %+v, %v", sent, got, err)
	}
}

// TestAttackHeaders: headers, and long subjects for the answer, take no memory of the server that is not counted, and
// malformed ones do not fill its log.
func TestAttackHeaders(t *testing.T) {
	c := &Consumer{most: MinWaiting, by: map[string]int64{}, come: make(chan struct{}, 1)}
	subject := wire.SampleSubject("evil")
	c.receive(&nats.Msg{Subject: subject, Header: nats.Header{"X": {strings.Repeat("x", maxMessage)}}})
	c.receive(&nats.Msg{Subject: subject, Reply: strings.Repeat("x", 4000)})
	if got := c.Backlog(); got.Bytes != 0 || got.Refused != 2 {
		t.Errorf("%+v", got)
	}
	c.receive(&nats.Msg{Subject: subject, Header: nats.Header{"X": {"x"}}})
	if len(c.queue) != 1 || c.queue[0].message.Header != nil {
		t.Errorf("%d deliveries wait, or headers do", len(c.queue))
	}
	var text bytes.Buffer
	failed := warner(slog.New(slog.NewTextHandler(&text, nil)))
	begun := time.Now()
	for range 1000 {
		failed(nil, nil, nats.ErrBadHeaderMsg)
	}
	if n, most := strings.Count(text.String(), "\n"), int(time.Since(begun).Seconds())+2; n < 1 || n > most {
		t.Errorf("%d lines in the log, %d at most", n, most)
	}
}

// TestAttackDamagedBundles: a bundle that cannot be read is one message that is no batch, and a
// batch in a bundle is checked as one alone.
func TestAttackDamagedBundles(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	k, _ := keep(t, openBus(t, a, url, 1))
	g := connect(t, url, credentials(t, a, authority.Agent, "m1", 0), credential.Samples)
	encoded := func(machine string, n uint64) []byte {
		b := wire.Batch{Key: wire.Key{Machine: machine, Boot: "b", N: n}, Samples: samples(machine, 1)}
		data, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	good := wire.Pack(encoded("m1", 1), encoded("victim", 2), encoded("m1", 3))
	for _, data := range [][]byte{good[:len(good)-1], append(bytes.Clone(good), 0xff), wire.Pack(nil, nil), wire.Pack(good, good), good} {
		if err := g.Publish(wire.SampleSubject("m1"), data); err != nil {
			t.Fatal(err)
		}
	}
	quelltest.Until(t, "the last one has come", func() bool { return slices.Equal(k.of("m1"), []uint64{1, 3}) })
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.wrong) != 1+1+2+2+1 || len(k.numbers) != 1 {
		t.Errorf("stored %v; refused %v", k.numbers, k.wrong)
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

// TestAttackAskingForDecisions: a machine that says again and again that it has no decisions does not have
// the server send it all of them each time.
func TestAttackAskingForDecisions(t *testing.T) {
	a := newAuthority(t)
	b := serveDecisions(t, openBus(t, a, serveHere(t, a), 1))
	b.add(t, "", decision("all", 0, off()))
	b.add(t, "m1", decision("own", 0, capping("web", time.Hour)))
	quelltest.Until(t, "the server knows both", func() bool { return len(b.Decisions()) == 2 })
	const times = 1000
	before := b.commands.link.nc.Stats().OutMsgs
	for range times {
		if err := b.commands.update(t.Context(), &wire.State{Machine: "m1"}); err != nil {
			t.Fatal(err)
		}
	}
	if sent := b.commands.link.nc.Stats().OutMsgs - before; sent == 0 || sent >= times {
		t.Errorf("%d messages were sent for %d", sent, times)
	}
	quelltest.Until(t, "later it gets them again", quelltest.Paced(func() bool {
		before := b.commands.link.nc.Stats().OutMsgs
		if err := b.commands.update(t.Context(), &wire.State{Machine: "m1"}); err != nil {
			t.Fatal(err)
		}
		return b.commands.link.nc.Stats().OutMsgs > before
	}))
}

// TestAttackManyStates: a machine that says what it has, or asks for credentials, faster than that is read, in messages
// of 1 MB, takes no memory for each, and keeps no other waiting.
func TestAttackManyStates(t *testing.T) {
	evil, m1, in := wire.StateSubject("evil"), wire.StateSubject("m1"), newInbox(0)
	for i := range 100 {
		in.put(&nats.Msg{Subject: evil, Data: []byte{byte(i)}})
	}
	in.put(&nats.Msg{Subject: m1})
	first, second, third := in.next(t.Context()), in.next(t.Context()), in.take()
	if first == nil || first.Subject != evil || first.Data[0] != 99 || second == nil || second.Subject != m1 || third != nil {
		t.Errorf("%v, %v, %v", first, second, third)
	}
}
