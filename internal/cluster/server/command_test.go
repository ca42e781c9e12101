package server

import (
	"encoding/json"
	"math"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/commandtest"
)

// TestCommandToAll: the answer to a command to all has each machine's reply and the
// machines that sent messages lately but did not reply. The outcome is in the audit log.
func TestCommandToAll(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	ask := func(body string) (cluster.Replies, *httptest.ResponseRecorder) {
		w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/commands", body)
		var r cluster.Replies
		if w.Code == 200 {
			if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
		}
		return r, w
	}
	for _, m := range []string{"m1", "m2"} {
		b.store.Add(&store.Batch{Source: store.Source{Stream: "samples", Machine: m, Boot: "b"}, N: 1, Samples: []sample.Sample{{TS: sample.At(start), Machine: m}}})
	}
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	b.fake.all = []*wire.Reply{{Machine: "m3", Message: "no task on this machine matches job web", None: true}, {Machine: "m2", Message: "too old"}, {Machine: "m1", Ok: true, Tasks: 4, Message: "capped 4"}}
	r, w := ask(`{"cluster":true,"why":"ticket 2","cap":{"job":"web","rate":0.5,"for":"5m"}}`)
	if w.Code != 200 || len(r.Replies) != 3 || r.Replies[0].Machine != "m1" || r.Replies[0].Tasks != 4 || !r.Replies[2].NoMatch || len(r.Silent) != 0 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if c := b.fake.commands[0]; c.GetCap().GetMany().GetJob() != "web" || c.GetCap().GetTask() != "" || c.Who != "olga" {
		t.Errorf("sent %v", c)
	}
	b.fake.reply = &wire.Reply{Machine: "m1", Ok: true}
	if r, w = ask(`{"machine":"m1","why":"x","unprotect":{"class":"batch"}}`); w.Code != 200 || len(r.Replies) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if c := b.fake.commands[1]; !c.GetProtect().GetOff() || c.GetProtect().GetMany().GetClass() != "batch" {
		t.Errorf("sent %v", c)
	}
	for _, body := range []string{
		`{"cluster":true,"machine":"m1","why":"x","uncap":{"all":true}}`, `{"why":"x","uncap":{"all":true}}`, `{"cluster":true,"why":"x","uncap":{"all":true,"job":"web"}}`,
		`{"cluster":true,"why":"x","uncap":{}}`, `{"cluster":true,"why":"x","protect":{"class":"web"}}`, `{"cluster":true,"uncap":{"all":true}}`,
	} {
		if _, w := ask(body); w.Code != 400 {
			t.Errorf("%s: %d", body, w.Code)
		}
	}
	if n := len(b.fake.commands); n != 2 {
		t.Errorf("%d commands went out", n)
	}
	found := false
	for _, a := range b.audits(t) {
		found = found || a.Target == "all machines cap job web to 0.5 CPU-s/s for 5m" && a.Why == "ticket 2" &&
			a.Outcome == "done on 1 machines; 1 have no matching task; 1 refused: m2: too old"
	}
	if !found {
		t.Errorf("not in the audit log: %+v", b.audits(t))
	}
}

// TestCommandsAtTheAPI: the server's API validates a command as all other entry points
// do, with the same messages, and forwards a valid one unchanged.
func TestCommandsAtTheAPI(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	b.fake.reply = &wire.Reply{Machine: "m1", Ok: true}
	sent := 0
	for _, c := range commandtest.Cases() {
		if c.JSON == "" {
			continue // not expressible in JSON
		}
		w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/commands", strings.Replace(c.JSON, "{", `{"machine":"m1",`, 1))
		if c.Want != "" {
			var f api.Failure
			if err := json.Unmarshal(w.Body.Bytes(), &f); w.Code != 400 || err != nil || !strings.Contains(f.Error, c.Want) {
				t.Errorf("%s: %d %s, want %q", c.Name, w.Code, w.Body, c.Want)
			}
			continue
		}
		sent++
		if w.Code != 200 || len(b.fake.commands) != sent {
			t.Fatalf("%s: %d %s, %d commands went out, want %d", c.Name, w.Code, w.Body, len(b.fake.commands), sent)
		}
		got, err := wire.DecodeCommand(b.fake.commands[sent-1])
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if text, err := json.Marshal(got); err != nil || string(text) != c.JSON {
			t.Errorf("%s: %s went out, %v", c.Name, text, err)
		}
	}
	if len(b.fake.commands) != sent {
		t.Errorf("%d commands went out, want %d", len(b.fake.commands), sent)
	}
}

// A machine has one row, however often its agent has restarted.
func TestMachines(t *testing.T) {
	b := newBench(t, nil)
	add := func(stream, boot string, n uint64) {
		b.store.Add(&store.Batch{Source: store.Source{Stream: stream, Machine: "m1", Boot: boot}, N: n, Samples: []sample.Sample{{TS: sample.At(start), Machine: "m1"}}})
	}
	add("samples", "first", 7)
	add("records", "first", 3)
	add("import", "", 1)
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]int{"SELECT machine FROM samples": 0, "FROM Machines": 3} {
		if w := b.local("POST", "/v1/query", `{"sql":"`+sql+`"}`); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if got := len(b.fake.jobs[len(b.fake.jobs)-1].Machines); got != want {
			t.Errorf("%s has %d rows of machines to read, want %d", sql, got, want)
		}
	}
	var all []cluster.Machine
	w := b.local("GET", "/v1/machines", "")
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 1 || all[0].Batch != 7 || all[0].Record != 3 || all[0].Lives != 1 || all[0].Boot != "first" || all[0].LastSeen != sample.At(start) {
		t.Errorf("%v %s", err, w.Body)
	}
}

// TestAnIncidentIsOfOneMachine: a cap for an incident is not sent to all machines.
func TestAnIncidentIsOfOneMachine(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	const to = `,"why":"r","cap":{"task":"/a","rate":1,"for":"1m","incident":"inc-7"}}`
	if w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/commands", `{"cluster":true`+to); w.Code != 400 || !strings.Contains(w.Body.String(), "incident: want its machine") {
		t.Errorf("to all: %d %s", w.Code, w.Body)
	}
	b.fake.reply = &wire.Reply{Ok: true}
	if w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/commands", `{"machine":"m1"`+to); w.Code != 200 || b.fake.commands[0].GetCap().GetIncident() != "inc-7" {
		t.Errorf("to one: %d %s", w.Code, w.Body)
	}
}

func TestPairs(t *testing.T) {
	b := newBench(t, nil)
	b.fake.answer = func(*duck.Job) (*duck.Answer, error) {
		return &duck.Answer{Answer: dialect.Answer{Rows: []json.RawMessage{json.RawMessage(`["web","reports",14,3,2.5,0.61,2,0,9,8,0.6,0.9,1763726400000]`), json.RawMessage(`["web","it's",1,1,null,null,1,1,0,0,null,null,5]`)}}}, nil
	}
	var pairs []cluster.Pair
	w := b.local("GET", "/v1/pairs?job=it%27s&since=24h", "")
	if err := json.Unmarshal(w.Body.Bytes(), &pairs); err != nil || len(pairs) != 2 {
		t.Fatalf("%v %s", err, w.Body)
	}
	if p := pairs[0]; p.Antagonist != "reports" || p.Incidents != 14 || p.Strength != 2.5 || p.Helped != 8 || p.Proven != 2 || *p.RelativeCost != 0.6 || *p.UsageLost != 0.9 || math.Abs(p.Confidence-0.5650) > 1e-3 || p.Newest != 1763726400000 {
		t.Errorf("%+v", p)
	}
	if p := pairs[1]; math.Abs(p.Confidence-0.2065) > 1e-3 || p.Strength != 0 || p.RelativeCost != nil { // proven once by accounts
		t.Errorf("%+v", p)
	}
	if sql := b.fake.jobs[0].SQL; !strings.Contains(sql, "victim_job = 'it''s'") || !strings.Contains(sql, "'true-positive'") || strings.Contains(sql, "%!") {
		t.Errorf("asked %s", sql)
	}
}

// TestAtLeast checks Wilson's interval against independently computed values of the
// paper's formula: 8 of 9 (0.5650), 1 of 1 (0.2065), 0 of 5 (0), none.
func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		k, n int
		want float64
	}{{8, 9, 0.5650}, {1, 1, 0.2065}, {0, 5, 0}, {0, 0, 0}, {50, 100, 0.4038}} {
		if got := atLeast(c.k, c.n); math.Abs(got-c.want) > 1e-3 {
			t.Errorf("%d of %d: %g, want %g", c.k, c.n, got, c.want)
		}
	}
}
