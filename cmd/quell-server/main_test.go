package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// asServer is the environment variable that makes the test binary quell-server.
const asServer = "QUELL_TEST_AS_SERVER"

// TestMain makes the test binary the child process of its queries.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childCommand || os.Getenv(asServer) != "" {
		main()
		os.Exit(0)
	}
	quelltest.Main(m)
}

// quellServer runs a command line.
func quellServer(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

type running struct {
	t     *testing.T
	set   []string
	api   string
	bus   string
	token string       // sent with requests; "" for none
	tls   *http.Client // trusts the server's certificate; nil: the API uses http
	state string
	ended chan error
	stop  context.CancelFunc
}

// start runs a server in this process until the test ends.
func start(t *testing.T, set ...string) *running {
	t.Helper()
	return startAs(t, &running{}, set...)
}

// startAs is start with a given client configuration.
func startAs(t *testing.T, r *running, set ...string) *running {
	t.Helper()
	r.t, r.api, r.bus, r.state = t, quelltest.FreeAddress(t), quelltest.FreeAddress(t), t.TempDir()
	r.set = append([]string{"state_dir=" + r.state, "listen=" + r.api, "bus.listen=" + r.bus, "store.flush=100ms", "log_level=error", "query.memory_mb=100"}, set...)
	r.begin()
	t.Cleanup(func() { r.end() })
	return r
}

func (r *running) begin() {
	r.t.Helper()
	c, err := config.LoadServer("", nil, r.set)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(r.t.Context()))
	r.stop, r.ended = stop, make(chan error, 1)
	go func() { r.ended <- run(ctx, c) }()
	quelltest.Until(r.t, "the server is ready", quelltest.Paced(func() bool {
		select {
		case err := <-r.ended:
			r.t.Fatalf("the server ended: %v", err)
		default:
		}
		status, _ := r.get("/readyz")
		return status == http.StatusOK
	}))
}

func (r *running) end() {
	if r.stop == nil {
		return
	}
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Errorf("the server ended with %v", err)
	}
	r.stop = nil
}

func (r *running) get(path string) (int, string) { return r.ask("GET", path, "") }

func (r *running) ask(method, path, body string) (int, string) {
	scheme, client := "http://", http.DefaultClient
	if r.tls != nil {
		scheme, client = "https://", r.tls
	}
	req, err := http.NewRequest(method, scheme+r.api+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// sql returns the rows of an answer.
func (r *running) sql(text string) string {
	r.t.Helper()
	body, err := json.Marshal(map[string]string{"sql": text})
	if err != nil {
		r.t.Fatal(err)
	}
	status, answer := r.ask("POST", "/v1/query", string(body))
	var a struct{ Rows []json.RawMessage }
	if err := json.Unmarshal([]byte(answer), &a); err != nil || status != http.StatusOK {
		return fmt.Sprint(status, " ", answer)
	}
	var rows []string
	for _, row := range a.Rows {
		rows = append(rows, string(row))
	}
	return strings.Join(rows, " ")
}

// untilSQL waits until a query has the rows. Each look is a process, and what is sent is stored
// a while later.
func (r *running) untilSQL(what, query, rows string) {
	r.t.Helper()
	const pause = 250 * time.Millisecond
	next := time.Now().Add(pause)
	last := ""
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%s: %s, want %s", query, last, rows)
		}
	}()
	quelltest.Until(r.t, what, func() bool {
		if time.Now().Before(next) {
			return false
		}
		last = r.sql(query)
		next = time.Now().Add(pause)
		return last == rows
	})
}

// TestFromAgentToSQL simulates an agent: what it sends over the bus is found by SQL,
// once, over a restart of the server.
func TestFromAgentToSQL(t *testing.T) {
	t.Parallel()
	r := start(t)
	creds, err := quellServer(t, "credentials", "agent", "m1", "--set", "state_dir="+r.state)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "m1.creds")
	if err := os.WriteFile(file, []byte(creds), 0o600); err != nil {
		t.Fatal(err)
	}
	up, err := bus.OpenUplink(bus.UplinkOptions{Options: bus.Options{URL: "nats://" + r.bus, Name: "m1", Credentials: file, Log: slog.New(slog.DiscardHandler)},
		Dir: t.TempDir(), MaxBytes: bus.MinSpool})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	now := sample.At(time.Now())
	send := func(n int) {
		up.Samples(now, []sample.Sample{{TS: now + sample.Millis(n), Machine: "m1", Job: "web", Task: "/web/1", Platform: "p", Signal: sample.CPI,
			Variant: "v", CPU: 1, Cost: float32(n), Coverage: 1}})
	}
	send(1)
	send(2)
	doc, err := json.Marshal(&incident.Record{Incident: plan.Incident{ID: "i1", Machine: "m1", Signal: sample.CPI, Victim: sample.Task{Name: "/web/1", Job: "web"}, Began: now, Updated: now}})
	if err != nil {
		t.Fatal(err)
	}
	up.Record(now, wire.Record_KIND_INCIDENT, "i1", doc)
	r.untilSQL("the samples are there", "SELECT cost FROM samples ORDER BY ts", "[1] [2]")
	r.untilSQL("the incident is there", "SELECT machine, id, victim_job FROM incidents", `["m1","i1","web"]`)
	if _, text := r.get("/v1/incidents?job=web&since=1h"); !strings.Contains(text, `"id":"i1"`) {
		t.Errorf("incidents: %s", text)
	}
	r.end()
	send(3)
	r.begin()
	r.untilSQL("what was sent meanwhile is there", "SELECT cost FROM samples ORDER BY ts", "[1] [2] [3]")
	if _, text := r.get("/v1/machines"); !strings.Contains(text, `"machine":"m1"`) {
		t.Errorf("machines: %s", text)
	}
}

// TestImportOnce imports a trace twice.
func TestImportOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "t.csv")
	text := "ts,machine,job,task,platform,signal,variant,class,cpu,cost,coverage,flags\n"
	for i := range 5 {
		text += fmt.Sprintf("%d,m1,web,/web/%d,p,cpi,v,batch,1,%d,1,\n", time.Now().UnixMilli()-int64(i), i, i)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set := "state_dir=" + filepath.Join(dir, "state")
	for _, want := range []string{"5 samples, 0 of them imported before", "5 samples, 5 of them imported before"} {
		out, err := quellServer(t, "import", "--set", set, name)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q, %v; want %q", out, err, want)
		}
	}
	out, err := quellServer(t, "segments", "samples", "--set", set)
	if err != nil || strings.Count(out, "\n") != 1 || !strings.HasSuffix(strings.TrimSpace(out), ".parquet") {
		t.Errorf("segments: %q, %v", out, err)
	}
}

func TestCommandLines(t *testing.T) {
	for _, c := range []struct{ args, out, err string }{
		{"check", "the configuration is valid", ""},
		{"check --set listen=0.0.0.0:80 --set query.rows=0 --set nothing=1", "", "has 4 problems"},
		{"config", "state_dir: ", ""},
		{"token bob admin", "", `scope "admin"`},
		{"token bob viewer", "bob viewer sha256:", ""},
		{"credentials root x", "", "want agent, viewer, server"},
		{"revoke root x", "", "want agent, viewer, server"},
		{"segments nothing", "", "want one of [samples incidents"},
		{"surplus", "", "want none"},
	} {
		out, err := quellServer(t, strings.Fields(c.args)...)
		if !strings.Contains(out, c.out) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v; want %q, %q", c.args, out, err, c.out, c.err)
		}
	}
}

// TestStopsOnATerm: SIGTERM ends the shipped daemon without an error, SIGHUP does not.
func TestStopsOnATerm(t *testing.T) {
	r := start(t, "bus.listen=")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it is ready after SIGHUP", quelltest.Paced(func() bool { // start may have used up its requests
		status, _ := r.get("/readyz")
		return status == http.StatusOK
	}))
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-r.ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	r.stop = nil
}

// TestBusAddressInUse: where another program has the bus's port, a NATS server for example, the server ends at once
// and says which setting and what to do.
func TestBusAddressInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c, err := config.LoadServer("", nil, []string{"state_dir=" + t.TempDir(), "bus.listen=" + taken.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	link, err := connect(t.Context(), c, nil, slog.New(slog.DiscardHandler), func(embedded.Refusal) {})
	if err == nil {
		link.close()
	}
	var usage daemon.UsageError
	var refused *daemon.ListenError
	if !errors.As(err, &usage) || !errors.As(err, &refused) || refused.Setting != "bus.listen" || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
}
