package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	hostileSeed     = flag.Uint64("hostile.seed", 17, "seed of TestHostileAgent")
	hostileMessages = flag.Int("hostile.messages", 1_500, "messages of TestHostileAgent")
)

// login authenticates for an account of the bus with a file of credentials.
func login(t *testing.T, creds string, account credential.Account) nats.Option {
	t.Helper()
	f, err := credential.Load(creds)
	if err != nil {
		t.Fatal(err)
	}
	return nats.UserJWT(func() (string, error) { return f.Token(account) }, f.Answer)
}

// victim is another machine's honest agent.
type victim struct {
	*bus.Uplink
	name     string
	sent     int    // samples
	batches  uint64 // of them
	commands atomic.Int64
}

func (g *guarded) victim(t *testing.T, name string) *victim {
	t.Helper()
	v, opened := &victim{name: name}, make(chan struct{})
	var err error
	v.Uplink, err = bus.OpenUplink(bus.UplinkOptions{
		Options: bus.Options{URL: "nats://" + g.bus, Name: name, Credentials: g.credentials(t, authority.Agent, name, time.Hour), Log: slog.New(slog.DiscardHandler)},
		Dir:     t.TempDir(), MaxBytes: bus.MinSpool,
		Decided: func(context.Context) {
			<-opened
			v.commands.Add(int64(len(v.Decisions())))
			reportDone(v.Uplink)
		}})
	if err != nil {
		t.Fatal(err)
	}
	close(opened)
	t.Cleanup(func() { v.Close() })
	return v
}

// reportDone says that everything that was decided is done.
func reportDone(up *bus.Uplink) {
	s := &wire.State{Mode: "advise", From: "configuration"}
	for _, c := range up.Decisions() {
		s.Outcomes = append(s.Outcomes, &wire.Reply{Id: c.Id, Ok: true, Message: "done", Tasks: 1})
	}
	up.Report(s)
}

// tick sends a tick of three samples, each with its own cost.
func (v *victim) tick(now sample.Millis) {
	all := make([]sample.Sample, 3)
	for i := range all {
		all[i] = sample.Sample{TS: now - sample.Millis(v.sent), Machine: v.name, Job: "web", Task: sample.TaskName(fmt.Sprint("/web/", i)), Platform: "p", Signal: sample.CPI,
			Variant: "v", Class: sample.Batch, CPU: 1, Cost: float32(v.sent + i), Coverage: 1}
	}
	v.Samples(now, all)
	v.sent += len(all)
	v.batches++
}

// hostile makes random messages of an agent that has the credentials of m1.
type hostile struct {
	*rand.Rand
	now      sample.Millis
	messages [][]byte // of all types, true and forged
}

// learn makes the messages that are sent, changed or not. boot names the victim's run.
func (h *hostile) learn(t *testing.T, boot string) {
	t.Helper()
	add := func(data []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		h.messages = append(h.messages, data)
	}
	for _, k := range []wire.Key{{Machine: "m1", Boot: "b", N: 1}, {Machine: "m1", Boot: boot, N: 2}, {Machine: "m1", Boot: "b", N: 1 << 60}, {Machine: "m2", Boot: boot, N: 2},
		{Machine: "m2", Boot: boot, N: 1 << 40}, {Machine: "m2", Boot: "other", N: 1}} {
		b := wire.Batch{Key: k, At: h.now, Samples: []sample.Sample{{TS: h.now, Job: "web", Task: "/web/0", Platform: "p", Signal: sample.CPI, Variant: "v", CPU: 1, Cost: 666, Coverage: 1}}}
		add(b.Encode())
		for _, r := range []*wire.Record{
			{Kind: wire.Record_KIND_INCIDENT, Id: "i1", Json: []byte(`{"id":"i1","machine":"m2","signal":"cpi","victim":{"name":"/web/0","job":"web"}}`)},
			{Kind: wire.Record_KIND_AUDIT, Id: "c1", Json: []byte(fmt.Sprintf(`{"at":%d,"machine":"m2","who":"anna","what":"cap","task":"/web/0","rate":0.1,"why":"x","result":"done"}`, h.now))},
		} {
			r.Machine, r.Boot, r.N, r.At = k.Machine, k.Boot, k.N, int64(h.now)
			add(wire.Marshal(r))
		}
	}
	add(wire.Pack(h.messages...), nil)
	cap := &wire.Command{Id: "x1", Who: "mallory", Why: "x", At: int64(h.now), Expires: int64(h.now) + 60_000,
		Do: &wire.Command_Cap_{Cap: &wire.Command_Cap{Task: "/web/0", Rate: 0.001, ForMs: 1 << 50}}}
	add(wire.Marshal(&wire.Decisions{Machine: "m2", Revision: 1 << 62, Signed: int64(h.now), Fresh: int64(h.now) + 60_000, List: []*wire.Command{cap}}))
	add(wire.Marshal(&wire.SignedDecisions{Decisions: h.messages[len(h.messages)-1], Signer: "x", Signature: make([]byte, 64)}))
	for _, machine := range []string{"m1", "m2"} {
		for _, revision := range []uint64{0, 1, uint64(h.now) * 1_000_000, 1 << 63} {
			add(wire.Marshal(&wire.State{Machine: machine, All: revision, Own: revision, Mode: "on \x1b[2J", Outcomes: []*wire.Reply{{Id: "x1", Ok: true, Message: "m2: done \x1b[2J"}}}))
		}
	}
	add(wire.Marshal(wire.SpecsOf("web", "p", 1<<60, []spec.Spec{{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "v"}, State: spec.Ready, Mean: 99}})))
	for _, text := range []string{"", `{"seq":1000000}`, `{"stream":"samples","seq":1}`, `{"last_by_subj":"$KV.specs.web.p"}`, `{"multi_last":["$KV.specs.>"]}`, "PING\r\n", "\x00"} {
		add([]byte(text), nil)
	}
}

// subject is one of m1's own, one of others', or of NATS itself. It may be a reply's too.
func (h *hostile) subject() string {
	machine := []string{"m1", "m1", "m2", "m3", "*", ">", "", "quell-server"}[h.IntN(8)]
	all := []string{wire.SampleSubject(machine), wire.RecordSubject(machine), wire.CommandSubject(machine), wire.StateSubject(machine), wire.CommandAll,
		wire.SpecSubject("web", "p"), "up.sample." + machine, "up.*.*", "up.>", "reply." + machine + ".x1", "inbox." + machine + ".x", "$KV.specs.web.p", "$KV.leases.lead", "$KV.decisions.all", "$JS.API.STREAM.PURGE.KV_decisions",
		"$JS.API.DIRECT.GET.KV_specs.$KV.specs.web.p", "$JS.API.DIRECT.GET.KV_specs", "$JS.API.DIRECT.GET.samples", "$JS.API.DIRECT.GET.KV_leases.$KV.leases.lead",
		"$JS.API.STREAM.PURGE.samples", "$JS.API.STREAM.PURGE.KV_specs", "$JS.API.STREAM.DELETE.samples", "$JS.API.STREAM.MSG.DELETE.samples", "$JS.API.STREAM.UPDATE.samples",
		"$JS.API.STREAM.MSG.GET.samples", "$JS.API.CONSUMER.CREATE.samples", "$JS.API.CONSUMER.MSG.NEXT.samples.x", "$JS.API.INFO", "$JS.ACK.samples.x.1.1.1.1.1",
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.USER.INFO", "_R_.x", "_INBOX.x", "spec.*.*", "anything"}
	return all[h.IntN(len(all))]
}

// allowed are m1's own subjects, so that many messages pass the bus.
func (h *hostile) allowed(account credential.Account) string {
	switch account {
	case credential.Samples:
		return []string{wire.SampleSubject("m1"), wire.RecordSubject("m1")}[h.IntN(2)]
	case credential.Specs:
		return "$JS.API.DIRECT.GET.KV_specs.$KV.specs." + []string{"web.p", "other.p", "none.p", ">", "*.*"}[h.IntN(5)] // of earlier versions
	}
	return []string{wire.StateSubject("m1"), wire.QuestionSubject("m1"), "reply.m1.x1"}[h.IntN(3)]
}

func (h *hostile) data() []byte {
	m := append([]byte(nil), h.messages[h.IntN(len(h.messages))]...)
	switch h.IntN(6) {
	case 0: // bits
		for range 1 + h.IntN(4) {
			if len(m) > 0 {
				m[h.IntN(len(m))] ^= 1 << h.IntN(8)
			}
		}
	case 1:
		m = m[:h.IntN(len(m)+1)]
	case 2: // fields of another message, which take precedence
		m = append(m, h.messages[h.IntN(len(h.messages))]...)
	case 3:
		for range h.IntN(64) {
			m = append(m, byte(h.Uint32()))
		}
	}
	return m
}

func (h *hostile) header() nats.Header {
	all := []nats.Header{{"Status": {"503"}}, {"Nats-Msg-Id": {"x"}}, {"Nats-Expected-Last-Sequence": {"0"}}, {"Nats-Rollup": {"all"}}, {"Nats-Rollup": {"sub"}}, {"Nats-TTL": {"1s"}},
		{"Nats-Trace-Dest": {wire.CommandAll}}, {"Nats-Trace-Dest": {wire.SampleSubject("m2")}, "Nats-Trace-Only": {"true"}}, {"KV-Operation": {"PURGE"}},
		{"Nats-Request-Info": {`{"acc":"x","user":"server.quell-server","name_tag":"server.quell-server"}`}}, {"Nats-Batch-Id": {"b"}, "Nats-Batch-Sequence": {"1"}},
		{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {wire.SampleSubject("m2")}}, {"Nats-Stream-Source": {"samples 1"}}}
	if h.IntN(3) > 0 {
		return nil
	}
	return all[h.IntN(len(all))]
}

// TestHostileAgent sends thousands of random messages with one machine's credentials: on every
// subject, with every subject for the answer, true, forged, changed, repeated and out of
// order. Nothing of another machine changes: its samples are all stored, once; nothing
// else is in its name; it carries out no command; its specs are what the server wrote.
func TestHostileAgent(t *testing.T) {
	t.Logf("-hostile.seed=%d", *hostileSeed)
	g := startGuarded(t)
	others := []*victim{g.victim(t, "m2"), g.victim(t, "m3")}
	now := sample.At(time.Now())
	for _, v := range others {
		v.tick(now)
	}
	g.untilSQL("both machines are known", "SELECT count(DISTINCT machine) FROM samples", "[2]")
	// A viewer sees a machine's run.
	var boot []string
	if err := json.Unmarshal([]byte(g.sql("SELECT boot FROM machines WHERE machine = 'm2' LIMIT 1")), &boot); err != nil {
		t.Fatal(err)
	}
	specs, err := bus.Open(t.Context(), bus.Options{URL: "nats://" + g.bus, Name: "test", Credentials: g.credentials(t, authority.Server, "test", 0), Log: slog.New(slog.DiscardHandler)},
		bus.Settings{Waiting: bus.MinWaiting})
	if err != nil {
		t.Fatal(err)
	}
	defer specs.Close()
	for _, job := range []string{"web", "other"} {
		key := spec.Key{Job: sample.JobName(job), Platform: "p", Signal: sample.CPI, Variant: "v"}
		if err := specs.PutSpecs(t.Context(), wire.SpecsOf(key.Job, "p", 5, []spec.Spec{{Key: key, State: spec.Ready, Mean: 1}})); err != nil {
			t.Fatal(err)
		}
	}
	others[0].WatchSpecs("p", []sample.JobName{"web", "other"})

	h := &hostile{Rand: rand.New(rand.NewPCG(*hostileSeed, 0)), now: now}
	h.learn(t, boot[0])
	accounts := []credential.Account{credential.Samples, credential.Specs, credential.Commands}
	creds := g.credentials(t, authority.Agent, "m1", time.Hour)
	var conns []*nats.Conn
	for _, account := range accounts {
		nc, err := nats.Connect("nats://"+g.bus, unhurried(), login(t, creds, account), nats.CustomInboxPrefix("inbox.m1"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		conns = append(conns, nc)
	}
	var heard atomic.Int64 // messages of others
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range *hostileMessages {
		a := h.IntN(len(accounts))
		nc := conns[a]
		if h.IntN(50) == 0 {
			subject := h.subject()
			sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
				for _, prefix := range []string{"up.", "reply.", "inbox.m2", "inbox.quell-server", "command.machine.m2", "renewed.m2", "$KV."} {
					if strings.HasPrefix(m.Subject, prefix) {
						heard.Add(1)
					}
				}
			})
			if err == nil {
				defer sub.Unsubscribe()
			}
		}
		m := &nats.Msg{Subject: h.subject(), Data: h.data(), Header: h.header()}
		if h.IntN(2) == 0 {
			m.Subject = h.allowed(accounts[a])
		}
		if h.IntN(4) > 0 {
			m.Reply = h.subject()
		}
		if err := nc.PublishMsg(m); err != nil && !errors.Is(err, nats.ErrBadSubject) && !errors.Is(err, nats.ErrInvalidMsg) {
			t.Fatalf("message %d: %v", i, err)
		}
		if i%100 == 99 {
			for _, nc := range conns {
				if err := nc.FlushTimeout(4 * time.Minute); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			// An agent makes a batch in seconds. Of those that wait in memory for a slow disk it drops
			// some, and this loop makes them faster.
			for _, v := range others {
				v.tick(now)
				quelltest.Until(t, v.name+"'s batch is on disk", func() bool { st := v.Stats(); return st.Sent+st.Waiting >= v.batches })
			}
		}
	}
	var stored []string
	for _, v := range others {
		quelltest.Until(t, v.name+"'s samples are all acknowledged", quelltest.Paced(func() bool { return v.Stats().Waiting == 0 }))
		stored = append(stored, fmt.Sprintf("[%q,%d,%d,%d]", v.name, v.sent, v.sent, v.sent-1))
		if v.commands.Load() != 0 || v.Stats().Forged != 0 {
			t.Errorf("%s carried out %d commands; %d messages came as commands", v.name, v.commands.Load(), v.Stats().Forged)
		}
		if err := v.Err(); err != nil {
			t.Errorf("%s is disturbed: %v", v.name, err)
		}
	}
	g.untilSQL("the others' samples are all stored, once", "SELECT machine, count(*), count(DISTINCT cost), max(cost) FROM samples WHERE machine <> 'm1' GROUP BY machine ORDER BY machine",
		strings.Join(stored, " "))
	// In one query: each is a process.
	var query, want []string
	for _, c := range [][2]string{
		{"SELECT count(*) FROM incidents WHERE machine <> 'm1'", "0"},
		{"SELECT count(*) FROM actions WHERE machine <> 'm1'", "0"},
		{"SELECT count(DISTINCT boot) FROM machines WHERE machine = 'm2'", "1"},
		{"SELECT string_agg(DISTINCT machine, ' ' ORDER BY machine) FROM samples", `"m1 m2 m3"`},
		{"SELECT count(*) > 0 FROM audit WHERE who = 'agent.m1'", "true"},
		{"SELECT count(*) FROM audit WHERE scope = 'agent' AND who <> 'agent.m1'", "0"},
		{"SELECT count(*) < 5000 FROM audit", "true"},
		{"SELECT count(*) FROM samples WHERE machine <> 'm1' AND cost = 666", "0"},
		{"SELECT count(*) FROM audit WHERE scope = 'operator' OR who LIKE 'operator%'", "0"},
	} {
		query, want = append(query, "("+c[0]+")"), append(want, c[1])
	}
	if got, want := g.sql("SELECT "+strings.Join(query, ", ")), "["+strings.Join(want, ",")+"]"; got != want {
		t.Errorf("%s\nare %s, want %s", strings.Join(query, "\n"), got, want)
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("it heard %d messages of others", n)
	}
	if n := len(others[0].Specs()); n != 2 {
		t.Errorf("m2 has received %d specs, want the 2 that the server wrote", n)
	}
	if status := g.as("olga", "POST", "/v1/commands", strings.Replace(capping, "m1", "m2", 1)); status != http.StatusOK || others[0].commands.Load() != 1 {
		t.Errorf("an operator's command afterwards: %d, %d carried out", status, others[0].commands.Load())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 128<<20 {
		t.Errorf("the server's heap has grown by %d MB", grown>>20)
	}
}

// TestAttackForgedOperator: the operator of a command is the holder of the token, whatever
// the request says; and the bus has no credentials with which a client could say it.
func TestAttackForgedOperator(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	up := g.victim(t, "m1")
	for _, body := range []string{
		strings.Replace(capping, `"why"`, `"who":"boss","why"`, 1),
		strings.Replace(capping, `"why":"x",`, "", 1),
		strings.Replace(capping, `"why":"x"`, `"why":" "`, 1),
		strings.Replace(capping, `"5m"`, `"87600h"`, 1),
		strings.Replace(capping, `"5m"`, `"99999h"`, 1),
		strings.Replace(capping, `,"for":"5m"`, "", 1),
	} {
		if status := g.as("olga", "POST", "/v1/commands", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d", body, status)
		}
	}
	// The answer may also be that the agent is silent.
	quelltest.Until(t, "the agent has the command", quelltest.Paced(func() bool {
		return g.as("olga", "POST", "/v1/commands", capping) == http.StatusOK && len(up.Decisions()) > 0
	}))
	if c := up.Decisions()[0]; c.Who != "olga" || c.Expires != c.At+300_000 || c.GetCap().GetTask() != "/a" {
		t.Errorf("got %v", c)
	}
	if _, err := quellServer(t, "credentials", "operator", "mallory", "--set", "state_dir="+g.state); err == nil {
		t.Error("an operator's credentials for the bus were issued")
	}
}
