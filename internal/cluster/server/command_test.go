package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/command"
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
	b.fake.replies = map[string]*wire.Reply{"m3": {Message: "no task on this machine matches job web", None: true}, "m2": {Message: "too old"}, "m1": {Ok: true, Tasks: 4, Message: "capped 4"}}
	r, w := ask(`{"cluster":true,"why":"ticket 2","cap":{"job":"web","rate":0.5,"for":"5m"}}`)
	if w.Code != 200 || len(r.Replies) != 3 || r.Replies[0].Machine != "m1" || r.Replies[0].Tasks != 4 || !r.Replies[2].NoMatch || len(r.Silent) != 0 || r.Decision == "" || r.Until != sample.At(start.Add(5*time.Minute)) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if c := b.fake.standing[""][0]; c.Cap.Job != "web" || c.Who != "olga" || c.ID != r.Decision {
		t.Errorf("decided %+v", c)
	}
	b.fake.replies = map[string]*wire.Reply{"m1": {Ok: true}}
	if r, w = ask(`{"machine":"m1","why":"x","unprotect":{"class":"batch"}}`); w.Code != 200 || len(r.Replies) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if c := b.fake.standing["m1"][0]; c.Unprotect.Class != "batch" {
		t.Errorf("decided %+v", c)
	}
	b.fake.replies = map[string]*wire.Reply{"m1": nil}
	if r, w = ask(`{"machine":"m1","why":"x","reset":{"protect":{"class":"batch"}}}`); w.Code != 200 || len(r.Replies) != 1 || !r.Replies[0].OK || len(b.fake.standing["m1"]) != 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, w = ask(`{"machine":"m1","why":"x","reset":{"protect":{"class":"batch"}}}`); w.Code != 404 {
		t.Errorf("nothing to reset: %d %s", w.Code, w.Body)
	}
	for _, body := range []string{
		`{"cluster":true,"machine":"m1","why":"x","uncap":{"all":true}}`, `{"why":"x","uncap":{"all":true}}`, `{"cluster":true,"why":"x","uncap":{"all":true,"job":"web"}}`,
		`{"cluster":true,"why":"x","uncap":{}}`, `{"cluster":true,"why":"x","protect":{"class":"web"}}`, `{"cluster":true,"uncap":{"all":true}}`,
	} {
		if _, w := ask(body); w.Code != 400 {
			t.Errorf("%s: %d", body, w.Code)
		}
	}
	if n := len(b.fake.decided); n != 2 {
		t.Errorf("%d decisions were made", n)
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

// TestRefusedCommandChangesNothing: a decision that its machine refuses is withdrawn, and what it had
// taken the place of stands again; also if the machine has nothing to do. What an uncap had removed
// stays removed, and what another operator has decided meanwhile stays.
func TestRefusedCommandChangesNothing(t *testing.T) {
	b := newBench(t, nil)
	decide := func(answer *wire.Reply, c command.Command) error {
		b.fake.replies = map[string]*wire.Reply{"m1": answer}
		c.Why = "r"
		_, err := b.decide(t.Context(), "anna", &cluster.Command{Machine: "m1", Command: c})
		return err
	}
	limit := func(rate float64) command.Command {
		return command.Command{Cap: &command.Cap{Target: command.Target{Task: "/a"}, Terms: command.Terms{Rate: rate, For: command.Duration(time.Hour)}}}
	}
	off := command.Command{Enforcement: &command.Enforcement{Mode: "off"}}
	for _, c := range []command.Command{off, limit(0.5)} {
		if err := decide(&wire.Reply{Ok: true}, c); err != nil {
			t.Fatal(err)
		}
	}
	before := slices.Clone(b.fake.standing["m1"])
	for _, c := range []struct {
		answer *wire.Reply
		command.Command
	}{{&wire.Reply{Message: "it is protected"}, limit(0.1)}, {&wire.Reply{Message: "an operator has overruled it", None: true}, command.Command{Enforcement: &command.Enforcement{Mode: "on"}}}} {
		if err := decide(c.answer, c.Command); err == nil || err.Error() != c.answer.Message {
			t.Errorf("%s: %v", c.answer.Message, err)
		}
		stands := map[string]bool{}
		for _, d := range b.fake.standing["m1"] {
			stands[d.ID] = true
		}
		if len(stands) != 2 || !stands[before[0].ID] || !stands[before[1].ID] {
			t.Errorf("%s: %+v stand, want %+v", c.answer.Message, b.fake.standing["m1"], before)
		}
	}
	if err := decide(&wire.Reply{Message: "nothing is capped", None: true}, command.Command{Uncap: &command.Target{Task: "/a"}}); err == nil || len(b.fake.standing["m1"]) != 1 {
		t.Errorf("an uncap: %v, %+v", err, b.fake.standing["m1"])
	}
	another := command.Decide("another", "olga", b.now(), off)
	if got := takenBack([]command.Decision{another}, &before[0], before); len(got) != 1 || got[0].ID != "another" {
		t.Errorf("with another decision meanwhile: %+v", got)
	}
}

// TestCommandsAtTheAPI: the server's API validates a command as all other entry points
// do, with the same messages, and forwards a valid one unchanged.
func TestCommandsAtTheAPI(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	b.fake.replies = map[string]*wire.Reply{"m1": {Ok: true}}
	for _, c := range commandtest.Cases() {
		if c.JSON == "" {
			continue // not expressible in JSON
		}
		before := len(b.fake.decided)
		w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/commands", strings.Replace(c.JSON, "{", `{"machine":"m1",`, 1))
		if c.Want != "" {
			var f api.Failure
			if err := json.Unmarshal(w.Body.Bytes(), &f); w.Code != 400 || err != nil || !strings.Contains(f.Error, c.Want) {
				t.Errorf("%s: %d %s, want %q", c.Name, w.Code, w.Body, c.Want)
			}
			if len(b.fake.decided) != before {
				t.Errorf("%s: it was decided", c.Name)
			}
			continue
		}
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", c.Name, w.Code, w.Body)
		}
		if strings.Contains(c.JSON, `"reset"`) { // it only takes back
			continue
		}
		if len(b.fake.decided) != before+1 {
			t.Fatalf("%s: %d decisions were made", c.Name, len(b.fake.decided)-before)
		}
		// As it reaches an agent: over the wire, without the duration, which became an end.
		got, err := wire.DecodeDecision(wire.EncodeDecision(&b.fake.decided[before]))
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		got.For = b.fake.decided[before].For
		if text, err := json.Marshal(&got.Command); err != nil || string(text) != c.JSON {
			t.Errorf("%s: %s went out, %v", c.Name, text, err)
		}
	}
}

// TestDecisionsAreShown: what stands, who has it, who waits for it, and what became of it; and
// each machine's mode and whether it is current.
func TestDecisionsAreShown(t *testing.T) {
	b := newBench(t, nil)
	for _, m := range []string{"m1", "m2", "m3", "m4"} {
		b.fake.say(&wire.State{Machine: m, Mode: "advise", From: "configuration"})
	}
	b.store.Add(&store.Batch{Source: store.Source{Stream: "samples", Machine: "m1", Boot: "b"}, N: 1, Samples: []sample.Sample{{TS: sample.At(start), Machine: "m1"}}})
	b.fake.replies = map[string]*wire.Reply{"m1": {Ok: true}, "m2": {Message: "too old"}, "m3": {None: true}}
	if _, err := b.decide(t.Context(), "anna", &cluster.Command{Cluster: true, Command: command.Command{Why: "r", Enforcement: &command.Enforcement{Mode: "on"}}}); err != nil {
		t.Fatal(err)
	}
	var all []cluster.Decision
	w := b.local("GET", "/v1/decisions", "")
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v %s", err, w.Body)
	}
	if d := all[0]; d.Who != "anna" || d.Enforcement.Mode != "on" || d.Machines != 4 || d.Have != 3 || d.Done != 1 || d.Refused != 1 || d.None != 1 || !slices.Equal(d.Waiting, []string{"m4"}) {
		t.Errorf("%s", w.Body)
	}
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	var machines []cluster.Machine
	w = b.local("GET", "/v1/machines", "")
	if err := json.Unmarshal(w.Body.Bytes(), &machines); err != nil || len(machines) != 1 || machines[0].State == nil || !machines[0].State.Current || machines[0].State.Mode != "advise" {
		t.Errorf("%v %s", err, w.Body)
	}
}

// TestRollOut: a mode is rolled out to one machine, then 1 %, then all: each step when its time
// is over and its machines have it. It stops when caps on the machines that it has reached do
// not help.
func TestRollOut(t *testing.T) {
	for _, c := range []struct {
		name    string
		helped  int
		failed  int
		stopped bool
	}{{"caps help", 5, 2, false}, {"no cap is known", 0, 0, false}, {"caps do not help", 1, 3, true}} {
		now := start
		b := newBench(t, func(p *Options) { p.Now = func() time.Time { return now } })
		b.fake.replies = map[string]*wire.Reply{"m1": {Ok: true}} // it has said something, and may be the first
		for i := range 299 {
			name := fmt.Sprintf("node-%d", i)
			b.fake.replies[name] = &wire.Reply{Ok: true}
			b.fake.say(&wire.State{Machine: name, Mode: "advise"})
		}
		if _, err := b.decide(t.Context(), "anna", &cluster.Command{Cluster: true, Canary: &command.Canary{Every: command.Duration(time.Hour)},
			Command: command.Command{Why: "r", Enforcement: &command.Enforcement{Mode: "on"}}}); err != nil {
			t.Fatal(err)
		}
		d := func() *command.Decision { return &b.fake.standing[""][0] }
		reached := func() (all []string) {
			for name := range b.fake.replies {
				if d().Applies(name, b.now()) {
					all = append(all, name)
				}
			}
			return all
		}
		first := reached()
		if len(first) != 1 {
			t.Fatalf("%s: %q at first", c.name, first)
		}
		b.fake.answer = func(*duck.Job) (*duck.Answer, error) {
			row := func(machine, outcome string, n int) json.RawMessage {
				return json.RawMessage(fmt.Sprintf(`[%q,%q,%d]`, machine, outcome, n))
			}
			elsewhere := "" // a machine that has it not
			for name := range b.fake.replies {
				if !d().Applies(name, b.now()) {
					elsewhere = name
				}
			}
			return &duck.Answer{Answer: dialect.Answer{Rows: []json.RawMessage{row(elsewhere, "noise", 100),
				row(first[0], "true-positive", c.helped), row(first[0], "noise", c.failed)}}}, nil
		}
		step := func(after time.Duration) {
			t.Helper()
			now = now.Add(after)
			for name := range b.fake.replies {
				b.fake.say(&wire.State{Machine: name, Mode: "on", All: b.fake.revision, Own: b.fake.revision})
			}
			if err := b.rollOut(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		step(time.Minute)
		if c.stopped {
			if why := d().Rollout.Stopped; !strings.Contains(why, "3 caps did not help or failed, 1 helped") || len(reached()) != 0 {
				t.Errorf("%s: stopped %q, %q have it", c.name, why, reached())
			}
			if a := b.audits(t); a[len(a)-1].What != "roll-out" || !strings.Contains(a[len(a)-1].Outcome, "stopped") {
				t.Errorf("audit %+v", a)
			}
			continue
		}
		if n := len(reached()); n != 1 {
			t.Errorf("%s: before its time %d have it", c.name, n)
		}
		now = now.Add(2 * time.Hour) // nothing was heard of its machine lately
		if err := b.rollOut(t.Context()); err != nil || len(reached()) != 1 {
			t.Errorf("%s: %q have it, and its machine is silent; %v", c.name, reached(), err)
		}
		step(0)
		if got := reached(); len(got) != 3 || !slices.Contains(got, first[0]) {
			t.Errorf("%s: %q have it, want 1 %%", c.name, got)
		}
		step(time.Hour)
		if got := reached(); len(got) != 300 || d().Rollout != nil {
			t.Errorf("%s: %d have it at the end", c.name, len(got))
		}
		step(time.Hour)
		if got := reached(); len(got) != 300 {
			t.Errorf("%s: %d have it afterwards", c.name, len(got))
		}
	}
}

// TestARollOutBeginsWithAMachine: right after the start of a server no machine may be known yet. A roll-out
// that reaches none would never go on.
func TestARollOutBeginsWithAMachine(t *testing.T) {
	now := start
	b := newBench(t, func(p *Options) { p.Now = func() time.Time { return now } })
	now = now.Add(time.Hour)
	_, err := b.decide(t.Context(), "anna", &cluster.Command{Cluster: true, Canary: &command.Canary{Every: command.Duration(time.Hour)},
		Command: command.Command{Why: "r", Enforcement: &command.Enforcement{Mode: "on"}}})
	if err == nil || !strings.Contains(err.Error(), "no machine was heard of") || len(b.fake.standing[""]) > 0 {
		t.Errorf("%v, %+v stands", err, b.fake.standing[""])
	}
}

// late is a Decider whose list of what stands is late: another server has changed it.
type late struct {
	*fake
	lists []command.Standing
}

func (l *late) Decisions() []command.Standing { return l.lists }

// roll puts a roll-out that has reached all of its machines in force since the start.
func (b *bench) roll() command.Decision {
	d := command.Decide("x", "anna", b.now(), command.Command{Why: "r", Enforcement: &command.Enforcement{Mode: "on"}})
	d.Rollout = &command.Rollout{Step: 1, Since: b.now(), Every: command.Duration(time.Minute), Below: math.MaxUint64}
	b.fake.standing[""], b.fake.revision = []command.Decision{d}, 7
	return d
}

// TestSeenByAClockThatWasAhead: a machine that was heard of while the server's clock was ahead, and not since,
// is not expected to answer.
func TestSeenByAClockThatWasAhead(t *testing.T) {
	now := start.Add(time.Hour)
	b := newBench(t, func(p *Options) { p.Now = func() time.Time { return now } })
	b.states.put(&wire.State{Machine: "gone"}, b.now())
	now = start
	b.states.put(&wire.State{Machine: "here"}, b.now())
	if seen := b.seen(); len(seen) != 1 || !seen["here"] {
		t.Errorf("%v", seen)
	}
}

// TestRollOutOfTwoServers: a server that has lost the lease and does not know it yet does not go on with
// a roll-out that the next one has stopped.
func TestRollOutOfTwoServers(t *testing.T) {
	now, l := start, &late{}
	b := newBench(t, func(p *Options) {
		l.fake = p.Decider.(*fake)
		p.Decider, p.Now = l, func() time.Time { return now }
	})
	stopped := b.roll()
	l.lists = l.fake.Decisions()
	r := *stopped.Rollout
	r.Stopped = "3 caps did not help"
	stopped.Rollout = &r
	b.fake.standing[""] = []command.Decision{stopped}
	now = now.Add(time.Hour)
	b.fake.say(&wire.State{Machine: "m1", Mode: "on", All: 7})
	if err := b.rollOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.fake.standing[""][0].Rollout; got == nil || *got != r {
		t.Errorf("%+v, want %+v", got, r)
	}
}

// TestRollOutAfterARestart: machines that a restarted server has not heard of since count: 9 of 10 of a
// step's machines must have the decision.
func TestRollOutAfterARestart(t *testing.T) {
	now := start
	b := newBench(t, func(p *Options) { p.Now = func() time.Time { return now } })
	b.roll()
	for _, m := range []string{"m1", "m2", "m3"} {
		b.store.Add(&store.Batch{Source: store.Source{Stream: "samples", Machine: m, Boot: "b"}, N: 1, Samples: []sample.Sample{{TS: sample.At(start), Machine: m}}})
	}
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Minute)
	for i, m := range []string{"m1", "m2", "m3"} {
		b.fake.say(&wire.State{Machine: m, Mode: "on", All: 7})
		if err := b.rollOut(t.Context()); err != nil {
			t.Fatal(err)
		}
		if moved := b.fake.standing[""][0].Rollout == nil; moved != (i == 2) {
			t.Errorf("%d of 3 machines have it, and it went on: %v", i+1, moved)
		}
	}
}

// TestRollOutWithoutMachinesOfBefore: a machine that was gone when a step began does not hold it up, for as long
// as the server runs. Nor does one that was heard of while the server's clock was ahead, and not since.
func TestRollOutWithoutMachinesOfBefore(t *testing.T) {
	now := start.Add(-time.Hour)
	b := newBench(t, func(p *Options) { p.Now = func() time.Time { return now } })
	b.fake.say(&wire.State{Machine: "gone", Mode: "on", All: 6})
	now = start.Add(365 * 24 * time.Hour)
	b.fake.say(&wire.State{Machine: "gone too", Mode: "on", All: 6})
	now = start
	b.roll()
	b.fake.say(&wire.State{Machine: "here", Mode: "on", All: 7})
	now = now.Add(2 * time.Minute)
	if err := b.rollOut(t.Context()); err != nil || b.fake.standing[""][0].Rollout != nil {
		t.Errorf("%v, %+v", err, b.fake.standing[""][0].Rollout)
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
	if w := b.do("192.0.2.1", "quell", "operator-secret", "POST", "/v1/commands", `{"machine":"m1"`+to); w.Code != 200 || b.fake.decided[0].Cap.Incident != "inc-7" {
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
