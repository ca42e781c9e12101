package cli

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// clusterAnswers are the fake quell-server's answers, by path.
var clusterAnswers = map[string]string{
	"/v1/machines": `[{"machine":"host-1","last_seen":1763726400000,"boot":"a","batch":812,"record":4,"lives":2,"state":{"at":1763726400000,"agent":"v1","all":7,"own":0,"current":true,"mode":"on","mode_from":"decision","by":"K7PZ"}},
{"machine":"host-17","last_seen":1763722800000,"boot":"b","batch":9,"record":0,"lives":1},
{"machine":"host-18","last_seen":1763722800000,"boot":"b","batch":9,"record":0,"lives":1,"state":{"at":1763726340000,"agent":"v1","all":6,"own":0,"current":false,"mode":"off","mode_from":"override","by":"local-1"}}]`,
	"/v1/tasks": `[{"machine":"host-1","task":"/batch/encode","job":"encode","class":"batch","cpu":1.42,"capped":true,"at":1763726390000,"costs":[{"signal":"runq","cost":0.5,"mean":null,"limit":null}]},
{"machine":"host-1","task":"shop/web-0/app","job":"shop/web/app","class":"latency-sensitive","cpu":0.8,"at":1763726390000,"costs":[{"signal":"cpi","cost":2.31,"mean":1.2,"limit":1.45},{"signal":"runq","cost":0.03,"mean":0.02,"limit":0.06}]}]`,
	"/v1/decisions": `[{"revision":7,"id":"K7PZ","who":"anna","at":1763722800000,"why":"release week","enforcement":{"mode":"on"},"rollout":{"step":1,"since":1763722800000,"every":"2h","below":9},"machines":300,"have":298,"done":3,"refused":0,"none":295,"waiting":["host-3","host-9"]},
{"machine":"host-1","revision":3,"id":"QX2A","who":"olga","at":1763722800000,"until":1763730000000,"why":"ticket 4711","cap":{"job":"encode","rate":0.2,"for":"2h"},"machines":1,"have":1,"done":0,"refused":1,"none":0}]`,
	"/v1/specs": `[{"job":"web","platform":"Intel-6-85-7","signal":"cpi","variant":"ref-cycles","state":"ready","samples":120000,"tasks":250,"cpu_mean":1.2,"mean":1.8123,"stddev":0.1634,"sigmas":2.4,"threshold":2.204,"version":31,"last":1763726400000,"machines":40,"machines_out":2,"left_out":["host-9"]}]`,
	"/v1/pairs": `[{"victim_job":"web","antagonist_job":"reports","incidents":14,"proven":12,"machines":3,"strength":2.5,"correlation":0.61,"caps":9,"helped":8,"relative_cost":0.61,"usage_lost":0.93,"confidence":0.565,"newest":1763726400000},
{"victim_job":"web","antagonist_job":"encode","incidents":2,"proven":0,"machines":1,"strength":1.2,"correlation":0.4,"caps":1,"helped":1,"relative_cost":0.8,"confidence":0.207,"newest":1763726400000},
{"victim_job":"db","antagonist_job":"/system.slice/backup","incidents":1,"proven":1,"machines":1,"strength":1.1,"correlation":0.37,"caps":0,"helped":0,"confidence":0.207,"newest":1763726400000},
	{"victim_job":"shop/web/app","antagonist_job":"batch/encode/worker","incidents":5,"proven":5,"machines":2,"strength":2.1,"correlation":0.5,"caps":4,"helped":4,"confidence":0.51,"newest":1763726400000},
	{"victim_job":"shop/web/proxy","antagonist_job":"batch/encode/worker","incidents":1,"proven":1,"machines":1,"strength":1.4,"correlation":0.4,"caps":1,"helped":1,"confidence":0.21,"newest":1763726400000},
	{"victim_job":"shop/web/app","antagonist_job":"docker/registry","incidents":1,"proven":1,"machines":1,"strength":1.4,"correlation":0.4,"caps":1,"helped":1,"confidence":0.21,"newest":1763726400000}]`,
}

// fakeCluster is a quell-server that answers from clusterAnswers and records requests.
// Commands succeed on host-1. Of a command to all machines host-2 refuses and host-3 is
// silent.
func fakeCluster(t *testing.T) (env map[string]string, asked func() string) {
	t.Helper()
	last := ""
	incidents, err := os.ReadFile("testdata/incidents.json")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		last = strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body))
		text, known := clusterAnswers[r.URL.Path]
		var c struct {
			Machine string
			Cluster bool
		}
		switch {
		case known:
			io.WriteString(w, text)
		case r.URL.Path == "/v1/incidents" && r.URL.Query().Get("id") == "nothing":
			io.WriteString(w, "[]")
		case r.URL.Path == "/v1/incidents":
			w.Write(incidents)
		case r.URL.Path != "/v1/commands" || json.Unmarshal(body, &c) != nil:
			w.WriteHeader(http.StatusTeapot)
		case c.Cluster && strings.Contains(string(body), `"job":"nobody"`):
			io.WriteString(w, `{"replies":[{"machine":"host-1","ok":false,"none":true,"message":"no task on this machine matches job nobody","tasks":0}],"silent":[]}`)
		case c.Cluster:
			io.WriteString(w, `{"replies":[{"machine":"host-1","ok":true,"message":"capped 1 of 2 tasks on this machine (job encode)","tasks":1,"refused":["cap /b: refused: it is capped already"]},
{"machine":"host-2","ok":false,"message":"it is never-cap","tasks":0},{"machine":"host-4","ok":false,"none":true,"message":"no task on this machine matches job encode","tasks":0}],"silent":["host-3"]}`)
		case c.Machine == "host-1":
			io.WriteString(w, `{"replies":[{"machine":"host-1","ok":true,"message":"it is done","cap":"cap-1","tasks":1}],"silent":[]}`)
		default:
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, `{"error":"command host-9: the machine is not connected","remedy":"see quell machines"}`)
		}
	}))
	t.Cleanup(s.Close)
	return map[string]string{"LANG": "C.UTF-8", "QUELL_SERVER": s.URL}, func() string { return last }
}

// TestRepliesFakeNothing: a machine's reply, or its name, cannot rewrite the terminal, nor look
// like another machine's reply.
func TestRepliesFakeNothing(t *testing.T) {
	const evil = `\u001b[2J\u009b1A\nhost-2: done: capped\r\u202e`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch body, _ := io.ReadAll(r.Body); {
		case strings.Contains(string(body), `"machine":"host-1"`):
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"error":"`+evil+`","remedy":"`+evil+`"}`)
		case r.URL.Path == "/v1/machines":
			io.WriteString(w, `[{"machine":"`+evil+`","last_seen":1}]`)
		case r.URL.Path == "/v1/specs":
			io.WriteString(w, `[{"job":"`+evil+`","platform":"`+evil+`","signal":"cpi","state":"ready","machines_out":1,"left_out":["`+evil+`"]}]`)
		default:
			io.WriteString(w, `{"replies":[{"machine":"`+evil+`","ok":true,"message":"`+evil+`","tasks":1,"refused":["`+evil+`"]}],"silent":["`+evil+`"]}`)
		}
	}))
	t.Cleanup(s.Close)
	env := map[string]string{"LANG": "C.UTF-8", "QUELL_SERVER": s.URL}
	for _, args := range []string{"cap x --machine host-1 --rate 1 --for 5m --reason r", "cap x --cluster --rate 1 --for 5m --reason r", "machines", "specs"} {
		got := quell(t, env, strings.Fields(args)...)
		for name, text := range map[string]string{"output": got.Out, "errors": got.Err} {
			if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }); i >= 0 {
				t.Errorf("%s: the %s have %q", args, name, text[i:])
			}
		}
		if strings.Contains("\n"+got.Out+"\n"+got.Err, "\nhost-2") {
			t.Errorf("%s: a reply looks like another machine's:\n%s", args, got.Out)
		}
		if !strings.Contains(got.Out+got.Err, `\x1b[2J`) {
			t.Errorf("%s: the text is not shown:\n%s%s", args, got.Out, got.Err)
		}
	}
}

// TestIncidentsOfTheCluster: incidents of two machines with one ID are not taken for one, a list that is cut
// off is not taken for all, and flags are checked as for one machine.
func TestIncidentsOfTheCluster(t *testing.T) {
	one := `{"id":"inc-1","machine":"%s","victim":{"task":"/web"},"updated":1,"rounds":[]}`
	answer, cut := "", "false"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(cluster.TruncatedTrailer, cut)
		io.WriteString(w, answer)
	}))
	defer s.Close()
	env := map[string]string{"LANG": "C.UTF-8", "QUELL_SERVER": s.URL}
	answer = "[" + strings.ReplaceAll(one, "%s", "host-1") + "," + strings.ReplaceAll(one, "%s", "host-2") + "]"
	if r := quell(t, env, "incidents", "inc-1", "--cluster"); r.Code != app.ExitNegative || !strings.Contains(r.Err, "host-1, host-2") || r.Out != "" {
		t.Errorf("%+v", r)
	}
	for id, args := range map[string]string{"": "incidents --cluster", "last": "incidents last --cluster"} { // a root's choice
		all := answer
		answer = strings.ReplaceAll(all, "inc-1", id)
		if r := quell(t, env, strings.Fields(args)...); r.Code != app.ExitOK || !strings.Contains(r.Out, "/web") {
			t.Errorf("two incidents with the ID %q: %+v", id, r)
		}
		answer = all
	}
	if r := quell(t, env, "incidents", "--cluster", "--json", "--limit", "1"); r.Code != app.ExitOK || !strings.Contains(r.Err, "1 older incidents are left out: --limit 0") {
		t.Errorf("a part of the incidents: %q, exit code %d", r.Err, r.Code)
	}
	for n, want := range map[int]bool{cluster.MostIncidents - 1: false, cluster.MostIncidents: true} {
		answer = "[" + strings.TrimSuffix(strings.Repeat(strings.ReplaceAll(one, "%s", "host-1")+",", n), ",") + "]"
		if r := quell(t, env, "incidents", "--cluster", "--victim", "/db"); r.Code != app.ExitOK || strings.Contains(r.Err, "only the newest") != want {
			t.Errorf("%d incidents: %d %s", n, r.Code, r.Err)
		}
	}
	answer, cut = "["+strings.ReplaceAll(one, "%s", "host-1")+"]", "true" // for the size of the others
	if r := quell(t, env, "incidents", "--cluster"); r.Code != app.ExitOK || !strings.Contains(r.Err, "only the newest 1:") {
		t.Errorf("a list that was cut off: %d %s", r.Code, r.Err)
	}
	for _, flag := range []string{"--since=-1h", "--limit=-1"} {
		if r := quell(t, env, "incidents", "--cluster", flag); r.Code == app.ExitOK {
			t.Errorf("%s is accepted", flag)
		}
	}
}

// TestIncidentOfAnotherMachine: the incident with an ID, not a newer one whose ID contains it.
func TestIncidentOfAnotherMachine(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `[{"id":"inc-12","machine":"m","rounds":[]},{"id":"inc-1","machine":"m","rounds":[]}]`)
	}))
	defer s.Close()
	d := &distant{Client: &cluster.Client{URL: s.URL}, machine: "m"}
	if inc, err := d.Incident(t.Context(), "inc-1"); err != nil || inc.ID != "inc-1" {
		t.Errorf("%s, %v", inc.ID, err)
	}
}

// TestTopOfAnotherMachine: the heading, the tasks' order, and what is asked.
func TestTopOfAnotherMachine(t *testing.T) {
	env, asked := fakeCluster(t)
	code, out := watching(t, env, false, "shop/web-0/app", 1, "--machine", "host-1")
	if heading, _, _ := strings.Cut(out, "\n"); code != app.ExitOK || !strings.Contains(heading, "host-1") || !strings.Contains(heading, "enforcement on") || !strings.Contains(heading, "2 tasks") || !strings.Contains(heading, "1 cap") {
		t.Errorf("%d: %s", code, out)
	}
	if strings.Index(out, "shop/web-0/app") > strings.Index(out, "/batch/encode") {
		t.Errorf("the worst is not first:\n%s", out)
	}
	if got := asked(); got != "GET /v1/incidents?machine=host-1&open=true&since=168h" {
		t.Errorf("asked %s", got)
	}
	for args, want := range map[string]string{"--machine host-99 --once": `knows no machine "host-99"`, "--server http://x --once": "add --machine NAME;", "--machine host-1 --at 12:00": "--at and --machine"} {
		if r := quell(t, env, append([]string{"top"}, strings.Fields(args)...)...); r.Code == app.ExitOK || !strings.Contains(r.Err, want) {
			t.Errorf("%s: %d, %s", args, r.Code, r.Err)
		}
	}
	// Commands of the screen go to that machine.
	a := &commands{App: &app.App{Now: time.Now}}
	of := a.agent(&scope{Client: &cluster.Client{URL: env["QUELL_SERVER"]}, machine: "host-1"})
	done, err := of.Command(t.Context(), command.CapTask("/batch/encode", 0.1, time.Minute, "r"))
	if err != nil || done.ID != "cap-1" || !strings.Contains(asked(), `"machine":"host-1"`) {
		t.Errorf("%+v, %v, %s", done, err, asked())
	}
}

// TestTopOfASilentMachine: that nothing has come from it is said, not that no rule there matches a cgroup.
func TestTopOfASilentMachine(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/machines" {
			io.WriteString(w, clusterAnswers[r.URL.Path])
			return
		}
		io.WriteString(w, "[]")
	}))
	t.Cleanup(s.Close)
	env := map[string]string{"LANG": "C.UTF-8", "QUELL_SERVER": s.URL}
	if r := quell(t, env, "top", "--machine", "host-17", "--once"); r.Code != app.ExitNegative || !strings.Contains(r.Err, "host-17 has sent nothing for 1h30m0s") || r.Out != "" {
		t.Errorf("%+v", r)
	}
}

// TestRevoke: what the command line sends.
func TestRevoke(t *testing.T) {
	var asked string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.Path + " " + string(body)
		io.WriteString(w, `{"message":"revoke specs of machine m1 since 24h; 3 specs changed"}`)
	}))
	t.Cleanup(s.Close)
	env := map[string]string{"LANG": "C.UTF-8", "QUELL_SERVER": s.URL}
	for _, c := range []struct {
		args string
		code int
		want string // the request, or the error
	}{
		{"--machine m1 --since 24h --reason r", app.ExitOK, `POST /v1/specs/revoke {"machine":"m1","since":"24h","why":"r"}`},
		{"--machine m1 --job web --lift --reason r", app.ExitOK, `POST /v1/specs/revoke {"machine":"m1","job":"web","lift":true,"why":"r"}`},
		{"--job web --since 2026-11-21 --until 2026-11-22 --reason r", app.ExitOK, `POST /v1/specs/revoke {"job":"web","since":"2026-11-21","until":"2026-11-22","why":"r"}`},
		{"--since 24h --reason r", app.ExitUsage, "want a machine, a job, or both"},
		{"--job web --since 24h", app.ExitUsage, `add --reason "why"`},
		{"--job web --reason r", app.ExitUsage, "since is empty"},
	} {
		asked = ""
		got := quell(t, env, append([]string{"specs", "revoke"}, strings.Fields(c.args)...)...)
		if got.Code != c.code || !strings.Contains(asked+got.Err, c.want) || (asked == "") != (c.code != app.ExitOK) {
			t.Errorf("%s: %d, asked %q, %s; want %d %q", c.args, got.Code, asked, got.Err, c.code, c.want)
		}
	}
}

func TestClusterPrints(t *testing.T) {
	env, _ := fakeCluster(t)
	for _, c := range []struct {
		golden string
		args   []string
	}{
		{"cluster_machines", []string{"machines"}},
		{"cluster_top", []string{"top", "--machine", "host-1", "--once"}},
		{"cluster_decisions", []string{"decisions", "--cluster"}},
		{"cluster_specs", []string{"specs", "--job", "web"}},
		{"cluster_pairs", []string{"advise-scheduler"}},
		{"cluster_pairs_yaml", []string{"advise-scheduler", "--yaml"}},
		{"cluster_pairs_required", []string{"advise-scheduler", "--yaml", "--required", "--label", "app.kubernetes.io/name"}},
		{"cluster_incidents", []string{"incidents", "--cluster"}},
		{"cluster_incident", []string{"incidents", "--machine", "m1", "last"}},
	} {
		got := quell(t, env, c.args...)
		if got.Code != app.ExitOK {
			t.Fatalf("%v: %d %s", c.args, got.Code, got.Err)
		}
		clitest.Golden(t, *update, c.golden, got.Out)
	}
	for _, args := range [][]string{{"machines"}, {"specs"}, {"advise-scheduler"}, {"incidents", "--cluster"}, {"decisions", "--machine", "host-1"}} {
		var rows []map[string]any
		if err := json.Unmarshal([]byte(quell(t, env, append(args, "--json")...).Out), &rows); err != nil || len(rows) == 0 {
			t.Errorf("%v --json: %d rows, %v", args, len(rows), err)
		}
	}
}

// The request to the server corresponds to the command line.
func TestClusterAsks(t *testing.T) {
	env, asked := fakeCluster(t)
	for _, c := range []struct {
		args string
		code int
		want string // the expected request
		says string
	}{
		{"cap encode --machine host-1 --rate 0.1 --for 5m --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","cap":{"task":"encode","rate":0.1,"for":"5m"}}`, "host-1: done: it is done"},
		{"uncap encode --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","uncap":{"task":"encode"}}`, "it is done"},
		{"protect --class batch --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","protect":{"class":"batch"}}`, "it is done"},
		{"protect --all --off --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","unprotect":{"all":true}}`, "it is done"},
		{"pardon encode --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","pardon":{"job":"encode"}}`, "it is done"},
		{"enforcement on --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","enforcement":{"mode":"on"}}`, "it is done"},
		{"cap --job encode --cluster --rate 0.1 --for 5m --reason r", app.ExitNegative, `POST /v1/commands {"cluster":true,"why":"r","cap":{"job":"encode","rate":0.1,"for":"5m"}}`,
			"host-1: in part: capped 1 of 2 tasks on this machine (job encode)\nhost-1: refused: cap /b: refused: it is capped already\nhost-2: refused: it is never-cap\nhost-4: none: no task on this machine matches job encode\nno answer from host-3"},
		{"uncap --job nobody --cluster --reason r", app.ExitNegative, `POST /v1/commands {"cluster":true,"why":"r","uncap":{"job":"nobody"}}`, "host-1: none"},
		{"cap encode --machine host-9 --rate 0.1 --for 5m --reason r", app.ExitNegative, `POST /v1/commands {"machine":"host-9","why":"r","cap":{"task":"encode","rate":0.1,"for":"5m"}}`, "what to do: see quell machines"},
		{"enforcement on --cluster --canary --step 2h --reason r", app.ExitNegative, `POST /v1/commands {"cluster":true,"canary":{"every":"2h"},"why":"r","enforcement":{"mode":"on"}}`, "host-3: it holds there from when it comes back"},
		{"enforcement --reset --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","reset":{"enforcement":true}}`, "it is done"},
		{"protect --job web --for 24h --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","protect":{"job":"web"},"for":"24h"}`, "it is done"},
		{"decisions revoke QX2A --machine host-1 --reason r", app.ExitOK, `POST /v1/commands {"machine":"host-1","why":"r","reset":{"decision":"QX2A"}}`, "it is done"},
		{"decisions --machine host-7", app.ExitOK, "GET /v1/decisions", "1 % of the machines"},
		{"incidents --cluster --since 24h --open", app.ExitOK, "GET /v1/incidents?open=true&since=24h0m0s", ""},
		{"incidents --machine m1 nothing", app.ExitNegative, "GET /v1/incidents?id=nothing&machine=m1", `no incident ID contains "nothing"`},
		{"advise-scheduler --job web --since 168h", app.ExitOK, "GET /v1/pairs?job=web&since=168h", "reports"},
		{"specs --job web --platform p", app.ExitOK, "GET /v1/specs?job=web&platform=p", "1.812"},
	} {
		got := quell(t, env, strings.Fields(c.args)...)
		if got.Code != c.code || asked() != c.want || !strings.Contains(got.Out+got.Err, c.says) {
			t.Errorf("%s: %d, asked %s\n%s%s\nwant %d, %s\n%s", c.args, got.Code, asked(), got.Out, got.Err, c.code, c.want, c.says)
		}
	}
}

func TestClusterCommandLines(t *testing.T) {
	env, _ := fakeCluster(t)
	for _, c := range []struct{ args, want string }{
		{"cap encode --machine a --cluster --rate 0.1 --for 5m --reason r", "choose one"},
		{"cap encode --server http://127.0.0.1:1 --rate 0.1 --for 5m --reason r", "without a machine"},
		{"cap encode --job web --cluster --rate 0.1 --for 5m --reason r", "want one of task, job, class, all; got task and job"},
		{"uncap --class web --cluster --reason r", `class "web": want`},
		{"protect --job web --cluster", "why is empty: want a reason"},
		{"enforcement --cluster", "name the mode to set"},
		{"enforcement on --reset --reason r", "choose one"},
		{"enforcement --reset --canary --cluster --reason r", "none of the others can be"},
		{"enforcement on --canary --reason r", "add --cluster"},
		{"enforcement on --canary --machine host-1 --reason r", "want canary only with enforcement and cluster: true"},
		{"enforcement on --canary --cluster --step 5s --reason r", "want a duration of a step from 1m to 168h"},
		{"enforcement on --cluster --step 1d --reason r", "--step without --canary"},
		{"protect web --off --reset --reason r", "none of the others can be"},
		{"incidents --cluster --state-dir /tmp", "choose one"},
		{"evaluate --since 1d", "--since without --cluster"},
		{"incidents last --cluster --victim web", "--victim is for lists"},
		{"advise-scheduler --yaml --json", "choose one"},
		{"advise-scheduler --label a:b --yaml", "a label's name"},
		{"advise-scheduler --min-confidence 2", "want 0 to 1"},
		{"machines --server http://127.0.0.1:1", "start quell-server"},
		{"machines --server http://quell.example --token-file /proc/self/comm", "a token is not sent without TLS"},
	} {
		got := quell(t, env, strings.Fields(c.args)...)
		if got.Code != app.ExitUsage || !strings.Contains(got.Err, c.want) {
			t.Errorf("%s: %d %q; want %q", c.args, got.Code, got.Err, c.want)
		}
	}
}

// TestWrongAddresses: what is said of an address at which no quell-server answers, or one with another scheme or name,
// tells which of these it is.
func TestWrongAddresses(t *testing.T) {
	made := func() *httptest.Server {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of the clients that do not trust it
		t.Cleanup(s.Close)
		return s
	}
	plain, secure := made(), made()
	plain.Start()
	secure.StartTLS()
	for _, c := range []struct{ address, what, remedy string }{
		{plain.URL, "404 Not Found: 404 page not found", "another program or version answers there"},
		{"http" + strings.TrimPrefix(secure.URL, "https"), "400 Bad Request: Client sent an HTTP request to an HTTPS server.", "https://"},
		{"https" + strings.TrimPrefix(plain.URL, "http"), "server gave HTTP response to HTTPS client", "http://"},
		{secure.URL, "failed to verify certificate", "$SSL_CERT_FILE"},
	} {
		got := quell(t, map[string]string{"LANG": "C.UTF-8"}, "machines", "--server", c.address)
		if _, remedy, _ := strings.Cut(got.Err, "\nwhat to do: "); !strings.Contains(got.Err, c.what) || !strings.Contains(remedy, c.remedy) || strings.Contains(remedy, "start quell-server") {
			t.Errorf("%s: %q", c.address, got.Err)
		}
	}
}

func TestClusterCompletes(t *testing.T) {
	env, _ := fakeCluster(t)
	for args, want := range map[string]string{"__complete cap encode --machine h": "host-17", "__complete protect --class b": "best-effort"} {
		if got := quell(t, env, strings.Fields(args)...); !strings.Contains(got.Out, want) {
			t.Errorf("%s: %q", args, got.Out)
		}
	}
}
