package local

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// fake is an agent that remembers its commands.
type fake struct {
	mu       sync.Mutex
	all      []incident.Record
	commands []command.Command
	asked    logbook.Query
	err      error
}

func (f *fake) Status(context.Context) (api.Status, error) {
	return api.Status{Version: "1", Machine: "m1", Now: 86_400_000}, f.err
}

func (f *fake) Tasks(context.Context) ([]api.TaskView, error) {
	key := spec.Key{Job: "web", Signal: "runq"}
	return []api.TaskView{{Task: sample.Task{Name: "/web/\xff", Job: "web", Class: sample.LatencySensitive}, CPU: 0.5, Capped: true,
		Costs: []api.SignalView{{Signal: "runq", Cost: 3, Limit: 2, Spec: spec.Spec{Key: key, State: spec.Ready, Mean: 1}}}},
		{Task: sample.Task{Name: "/db", Job: "db"}, Costs: []api.SignalView{{Signal: "runq", Cost: 1, Limit: incident.Value(nan()), Spec: spec.Spec{Key: spec.Key{Job: "db"}}}}},
		{Task: sample.Task{Name: "/new", Job: "new"}}}, f.err // before its first window
}

func nan() float64 { z := 0.0; return z / z }

func (f *fake) Incidents(_ context.Context, q logbook.Query) (api.Incidents, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	return api.Incidents{Incidents: append([]incident.Record{}, f.all...)}, f.err
}

func (f *fake) Incident(_ context.Context, id string) (incident.Record, error) {
	for _, inc := range f.all {
		if inc.ID == id {
			return inc, nil
		}
	}
	return incident.Record{}, &api.RefusedError{Failure: api.Failure{Error: "no incident"}, Status: http.StatusNotFound}
}

func (f *fake) Command(_ context.Context, c command.Command) (api.Done, error) {
	if c.Why == "refuse it" {
		return api.Done{}, &api.RefusedError{Failure: api.Failure{Error: "it is protected", Remedy: "ask"}, Status: http.StatusConflict}
	}
	f.commands = append(f.commands, c)
	return api.Done{Message: "capped 1 task", ID: "cap-1", Tasks: 1}, f.err
}

func suffering(id, victim, suspect string) incident.Record {
	return incident.Record{Incident: plan.Incident{ID: id, Machine: "m1", Signal: "runq", Victim: sample.Task{Name: sample.TaskName("/" + victim), Job: sample.JobName(victim)}, Updated: 5,
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Antagonists: 1, Suspects: []detect.Suspect{{Task: sample.Task{Name: sample.TaskName("/" + suspect), Job: sample.JobName(suspect)}}}}}}}
}

const secret = "the-token"

// ask sends a request as the browser does.
func ask(h http.Handler, method, path, body string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "127.0.0.1:9782"
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func handlerOf(f *fake) http.Handler {
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page") })
	return New(Options{Agent: f, Pages: pages, Token: secret, Poll: time.Millisecond})
}

// The agent's answers become those of quell-server's API.
func TestAnswers(t *testing.T) {
	f := &fake{all: []incident.Record{suffering("i1", "web", "encode"), suffering("i2", "db", "web")}}
	second := suffering("", "db", "train").Suspects[0]
	f.all[1].Suspects, f.all[1].Antagonists = append(f.all[1].Suspects, second), 2
	h := handlerOf(f)
	for _, x := range []struct{ path, want string }{
		{"/v1/caller", `{"name":"local","scope":"operator","version":"1","now":86400000,"machine":"m1"}`},
		{"/v1/tasks?job=web", `[{"machine":"m1","task":"\"/web/\\xff\"","job":"web","class":"latency-sensitive","cpu":0.5,"capped":true,"at":86400000,"costs":[{"signal":"runq","cost":3,"mean":1,"limit":2}]}]`},
		{"/v1/tasks?job=db", `[{"machine":"m1","task":"/db","job":"db","class":"best-effort","cpu":0,"at":86400000,"costs":[{"signal":"runq","cost":1,"mean":null,"limit":null}]}]`},
		{"/v1/tasks?job=new", `[{"machine":"m1","task":"/new","job":"new","class":"best-effort","cpu":0,"at":86400000,"costs":[]}]`},
		{"/v1/tasks?machine=other", "[]"},
		{"/v1/machines", `[{"machine":"m1","last_seen":86400000,"boot":"","batch":0,"record":0,"lives":1}]`},
		{"/v1/incidents?id=i9", "[]"},
		{"/v1/incidents?job=none", "[]"},
	} {
		if w := ask(h, "GET", x.path, "", nil); w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != x.want {
			t.Errorf("%s: %d %s, want %s", x.path, w.Code, w.Body, x.want)
		}
	}
	for path, want := range map[string]string{"/v1/incidents?since=1h": "i2 i1", "/v1/incidents?job=web&open=true": "i1", "/v1/incidents?suspect=web": "i2", "/v1/incidents?suspect=train": "i2", "/v1/incidents?id=i1": "i1", "/v1/incidents?machine=m2": ""} {
		var list []incident.Record
		w := ask(h, "GET", path, "", nil)
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatalf("%s: %v, %s", path, err, w.Body)
		}
		var ids []string
		for _, inc := range list {
			ids = append(ids, inc.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if ask(h, "GET", "/v1/incidents?since=1h&open=true", "", nil); f.asked.Since != 86_400_000-3_600_000 || !f.asked.Open {
		t.Errorf("the agent was asked for %+v", f.asked)
	}
	var specs []struct {
		Job       string
		Threshold float64
	}
	if err := json.Unmarshal(ask(h, "GET", "/v1/specs?job=web", "", nil).Body.Bytes(), &specs); err != nil || len(specs) != 1 || specs[0].Threshold != 2 {
		t.Errorf("specs: %+v, %v", specs, err)
	}
	f.err = &api.UnreachableError{Socket: "/run/x", Err: context.DeadlineExceeded}
	if w := ask(h, "GET", "/v1/tasks", "", nil); w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "reach the agent at /run/x") {
		t.Errorf("without an agent: %d %s", w.Code, w.Body)
	}
}

// Only a browser that has the token and opened this machine's address is answered.
func TestRefusals(t *testing.T) {
	h := handlerOf(&fake{})
	set := func(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
	for _, x := range []struct {
		name, method, path, body string
		change                   func(*http.Request)
		want                     int
	}{
		{"the browser", "GET", "/v1/caller", "", nil, 200},
		{"no token", "GET", "/v1/caller", "", set("Authorization", ""), 401},
		{"another token", "GET", "/v1/caller", "", set("Authorization", "Bearer the-toke"), 401},
		{"no token, stream", "GET", "/v1/events", "", set("Authorization", ""), 401},
		{"another site", "GET", "/v1/caller", "", set("Sec-Fetch-Site", "cross-site"), 403},
		{"another name of this address", "GET", "/v1/caller", "", func(r *http.Request) { r.Host = "evil.example:9782" }, 403},
		{"by name", "GET", "/v1/caller", "", func(r *http.Request) { r.Host = "localhost:9782" }, 200},
		{"IPv6", "GET", "/v1/caller", "", func(r *http.Request) { r.Host = "[::1]:9782" }, 200},
		{"a form", "POST", "/v1/commands", "{}", set("Content-Type", "text/plain"), 415},
		{"no command", "POST", "/v1/commands", "{}", nil, 400},
		{"unknown key", "POST", "/v1/commands", `{"x":1}`, nil, 400},
		{"too large", "POST", "/v1/commands", `{"why":"` + strings.Repeat("x", most) + `"}`, nil, 400},
		{"another machine", "POST", "/v1/commands", `{"machine":"m2","why":"w","uncap":{"task":"/a"}}`, nil, 404},
		{"what an agent refuses", "POST", "/v1/commands", `{"machine":"m1","why":"refuse it","uncap":{"task":"/a"}}`, nil, 409},
		{"what only the server has", "POST", "/v1/query", `{"sql":"SELECT 1"}`, nil, 404},
		{"no time", "GET", "/v1/incidents?since=never", "", nil, 400},
		{"a page", "GET", "/", "", set("Authorization", ""), 200},
	} {
		w := ask(h, x.method, x.path, x.body, x.change)
		if w.Code != x.want || x.want != 200 && !strings.Contains(w.Body.String(), `"error":"`) {
			t.Errorf("%s: %d %s, want %d", x.name, w.Code, w.Body, x.want)
		}
	}
}

// A command is the agent's, with its reason.
func TestCommand(t *testing.T) {
	f := &fake{}
	w := ask(handlerOf(f), "POST", "/v1/commands", `{"machine":"m1","why":"ticket","cap":{"task":"/a","rate":0.1,"for":"10m"}}`, nil)
	if want := `{"replies":[{"machine":"m1","ok":true,"message":"capped 1 task","cap":"cap-1","tasks":1}],"silent":[]}`; w.Code != 200 || strings.TrimSpace(w.Body.String()) != want {
		t.Errorf("%d %s, want %s", w.Code, w.Body, want)
	}
	if len(f.commands) != 1 || f.commands[0].Why != "ticket" || f.commands[0].Cap == nil || f.commands[0].Cap.Task != "/a" {
		t.Errorf("the agent got %+v", f.commands)
	}
}

// An incident that is new or has changed is an event; what was there before is none.
func TestEvents(t *testing.T) {
	f := &fake{all: []incident.Record{suffering("i1", "web", "encode")}}
	s := httptest.NewServer(handlerOf(f))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL+"/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Scan() // the first look
	f.mu.Lock()
	f.all = append(f.all, suffering("i2", "db", "web"))
	f.mu.Unlock()
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if want := `{"closed":null,"id":"i2","kind":"neighbour","machine":"m1","outcome":"","signal":"runq","suspect_task":"/web","updated":5,"victim_job":"db","victim_task":"/db"}`; data != want {
				t.Errorf("the event is %s, want %s", data, want)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if want := sample.Millis(86_400_000).Add(-lately); f.asked.Since != want {
				t.Errorf("the agent is asked for all incidents since %d, want %d", f.asked.Since, want)
			}
			return
		}
	}
	t.Errorf("no event: %v", lines.Err())
}
