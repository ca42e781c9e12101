package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/server"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// guarded is a server that requires tokens, with the tokens of several users.
type guarded struct {
	*running
	keys   *authority.Authority
	file   string            // of tokens
	lines  map[string]string // in it, by name
	secret map[string]string // by name
}

func startGuarded(t *testing.T, set ...string) *guarded {
	t.Helper()
	g := &guarded{lines: map[string]string{}, secret: map[string]string{}, file: filepath.Join(t.TempDir(), "tokens")}
	for _, k := range []struct {
		name    string
		scope   server.Scope
		expires string
	}{{"victor", server.Viewer, ""}, {"olga", server.Operator, ""}, {"old", server.Operator, "2020-01-31"}, {"fired", server.Operator, ""}} {
		secret, line, err := server.NewToken(k.name, k.scope, k.expires)
		if err != nil {
			t.Fatal(err)
		}
		g.secret[k.name], g.lines[k.name] = secret, line
	}
	g.write(t)
	g.running = start(t, append([]string{"tokens_file=" + g.file, "limits.per_second=1000", "limits.burst=1000"}, set...)...)
	g.token = g.secret["victor"]
	var err error
	if g.keys, err = authority.Load(filepath.Join(g.state, "keys")); err != nil {
		t.Fatal(err)
	}
	return g
}

// write writes the file of tokens.
func (g *guarded) write(t *testing.T) {
	t.Helper()
	var text strings.Builder
	for _, line := range g.lines {
		fmt.Fprintln(&text, line)
	}
	if err := os.WriteFile(g.file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// as sends a request to the API with the token of name.
func (g *guarded) as(name, method, path, body string) int {
	r := *g.running
	r.token = g.secret[name]
	status, _ := r.ask(method, path, body)
	return status
}

// credentials writes a credentials file and returns its path.
func (g *guarded) credentials(t *testing.T, role authority.Role, name string, ttl time.Duration) string {
	t.Helper()
	text, err := g.keys.Issue(role, name, ttl)
	path := filepath.Join(t.TempDir(), name+".creds")
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// unhurried is the option of a client that waits until the server lets it in, or does not: by
// default it gives up after 2 s.
func unhurried() nats.Option { return nats.Timeout(4 * time.Minute) }

// publishes reports whether the bus lets the holder of credentials publish.
func (g *guarded) publishes(creds, subject string) (bool, error) {
	nc, err := nats.Connect("nats://"+g.bus, unhurried(), nats.UserCredentials(creds), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return false, err
	}
	defer nc.Close()
	if err := errors.Join(nc.Publish(subject, []byte("x")), nc.FlushTimeout(4*time.Minute)); err != nil {
		return false, err
	}
	// The server answers in order: a refusal arrives before the answer.
	switch err := nc.LastError(); {
	case err == nil:
		return true, nil
	case errors.Is(err, nats.ErrPermissionViolation):
		return false, nil
	default:
		return false, err
	}
}

// connects reports whether the bus accepts a client.
func (g *guarded) connects(options ...nats.Option) bool {
	nc, err := nats.Connect("nats://"+g.bus, append(options, unhurried())...)
	if err != nil {
		return false
	}
	nc.Close()
	return true
}

const capping = `{"machine":"m1","why":"x","cap":{"task":"/a","rate":0.1,"for":"5m"}}`

// TestRefusedAndAudited: an unauthorised client is refused by the API and the bus, and
// the audit log has the client, its address, the operation and the reason.
func TestRefusedAndAudited(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	stranger, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	forged, err := stranger.Issue(authority.Server, "olga", 0)
	if err != nil {
		t.Fatal(err)
	}
	forgery := filepath.Join(t.TempDir(), "forged.creds")
	if err := os.WriteFile(forgery, forged, 0o600); err != nil {
		t.Fatal(err)
	}
	status := func(name string, want int) func(*testing.T) {
		return func(t *testing.T) {
			if got := g.as(name, "POST", "/v1/commands", capping); got != want {
				t.Errorf("it answered %d, want %d", got, want)
			}
		}
	}
	publish := func(role authority.Role, name, subject string) func(*testing.T) {
		return func(t *testing.T) {
			if ok, err := g.publishes(g.credentials(t, role, name, time.Hour), subject); ok || err != nil {
				t.Errorf("it was let publish: %v, %v", ok, err)
			}
		}
	}
	turnedAway := func(options ...nats.Option) func(*testing.T) {
		return func(t *testing.T) {
			if g.connects(options...) {
				t.Error("it was let in")
			}
		}
	}
	var audits []string
	for _, c := range []struct {
		name string
		try  func(*testing.T)
		// who, from, scope, what, target and the beginning of the outcome
		audit string
	}{
		{"API: no token", status("", 401), `["","127.0.0.1","","POST /v1/commands","","refused: a token is required"]`},
		{"API: an expired token", status("old", 401), `["old","127.0.0.1","","POST /v1/commands","","refused: the token expired on 2020-01-31"]`},
		{"API: a viewer's for a cap", status("victor", 403), `["victor","127.0.0.1","viewer","POST /v1/commands","","refused: the token's scope is viewer"]`},
		{"API: a revoked token", func(t *testing.T) {
			status("fired", 404)(t) // it is allowed; the machine was never there
			delete(g.lines, "fired")
			g.write(t)
			quelltest.Until(t, "the token is revoked", quelltest.Paced(func() bool { return g.as("fired", "POST", "/v1/commands", capping) == 401 }))
		}, `["","127.0.0.1","","POST /v1/commands","","refused: unknown token"]`},
		{"bus: no credentials", turnedAway(), `["","127.0.0.1","","bus: connect","","refused: no credentials"]`},
		{"bus: a password", turnedAway(nats.UserInfo("quell", "quell")), `["","127.0.0.1","","bus: connect","","refused: no credentials"]`},
		{"bus: expired credentials", turnedAway(nats.UserCredentials(g.credentials(t, authority.Agent, "late", -time.Hour))),
			`["agent.late","127.0.0.1","agent","bus: connect","","refused: the credentials expired on `},
		{"bus: another authority's", turnedAway(nats.UserCredentials(forgery)), `["","127.0.0.1","","bus: connect","","refused: the credentials are another authority's"]`},
		{"bus: an agent's for another machine's samples", publish(authority.Agent, "m1", wire.SampleSubject("m2")),
			`["agent.m1","127.0.0.1","agent","bus: publish","up.sample.m2","refused: its credentials do not allow it"]`},
		{"bus: an agent's for another machine's incidents", publish(authority.Agent, "m1", wire.RecordSubject("m2")),
			`["agent.m1","127.0.0.1","agent","bus: publish","up.record.m2","refused: its credentials do not allow it"]`},
		{"bus: an agent's for a cap", publish(authority.Agent, "m1", wire.CommandSubject("m2")),
			`["agent.m1","127.0.0.1","agent","bus: publish","command.machine.m2","refused: its credentials do not allow it"]`},
		{"bus: a viewer's for a cap", publish(authority.Viewer, "vera", wire.CommandSubject("m1")),
			`["viewer.vera","127.0.0.1","viewer","bus: publish","command.machine.m1","refused: its credentials do not allow it"]`},
		{"bus: an agent that listens to another machine's commands", func(t *testing.T) {
			refused := make(chan error, 1)
			nc, err := nats.Connect("nats://"+g.bus, unhurried(), nats.UserCredentials(g.credentials(t, authority.Agent, "m1", time.Hour)),
				nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if _, err := nc.SubscribeSync(wire.CommandSubject("m2")); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-refused:
				if !errors.Is(err, nats.ErrPermissionViolation) {
					t.Error(err)
				}
			case <-time.After(4 * time.Minute):
				t.Error("it was let listen")
			}
		}, `["agent.m1","127.0.0.1","agent","bus: subscribe","command.machine.m2","refused: its credentials do not allow it"]`},
		{"bus: revoked credentials", func(t *testing.T) {
			creds := g.credentials(t, authority.Agent, "m9", 0)
			away := make(chan struct{})
			nc, err := nats.Connect("nats://"+g.bus, unhurried(), nats.UserCredentials(creds), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(away) }))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			out, err := quellServer(t, "revoke", "agent", "m9", "--set", "state_dir="+g.state)
			if err != nil || !strings.HasPrefix(out, "1 credentials of agent m9") {
				t.Fatalf("%q, %v", out, err)
			}
			select {
			case <-away:
			case <-time.After(4 * time.Minute):
				t.Fatal("it is still connected")
			}
			turnedAway(nats.UserCredentials(creds))(t)
			if !g.connects(nats.UserCredentials(g.credentials(t, authority.Agent, "m9", 0))) {
				t.Error("new ones are not let in")
			}
		}, `["agent.m9","127.0.0.1","agent","bus: connect","","refused: the credentials were revoked"]`},
	} {
		t.Run(c.name, c.try)
		audits = append(audits, c.audit)
	}
	// All in one query: each query is a process. Equal entries are recorded once, with
	// the repetitions counted.
	var log string
	missing := func() (all []string) {
		log = g.sql(`SELECT who, "from", scope, what, target, outcome FROM audit`)
		for _, a := range audits {
			if !strings.Contains(log, a) {
				all = append(all, a)
			}
		}
		return all
	}
	defer func() {
		if t.Failed() {
			t.Logf("the audit log: %s", log)
		}
	}()
	quelltest.Until(t, "all is audited", quelltest.Paced(func() bool { return len(missing()) == 0 }))
	list, err := quellServer(t, "credentials", "list", "--set", "state_dir="+g.state, "--json")
	var issued []struct{ Role, Name, State string }
	if err := errors.Join(err, json.Unmarshal([]byte(list), &issued)); err != nil {
		t.Fatal(err)
	}
	for name, state := range map[string]string{"m9": "revoked ", "late": "ended ", "vera": "good until "} {
		if !slices.ContainsFunc(issued, func(i struct{ Role, Name, State string }) bool {
			return i.Name == name && strings.HasPrefix(i.State, state)
		}) {
			t.Errorf("%s is not %q in %s", name, state, list)
		}
	}
	// An authorised operator's command is carried out and audited too.
	if got := g.as("olga", "POST", "/v1/commands", capping); got != http.StatusNotFound {
		t.Errorf("an operator's cap on a machine that was never there: %d", got)
	}
	if got := g.sql(`SELECT why, outcome FROM audit WHERE who = 'olga'`); !strings.Contains(got, "was never heard of") {
		t.Errorf("the operator's command in the audit log: %s", got)
	}
}

// TestStalledViewers: a viewer with six connections on which it does not read the answers of
// 8 MB takes no more than its share of the server's memory, and another user's query of the
// same size is answered meanwhile.
func TestStalledViewers(t *testing.T) {
	g := startGuarded(t, "limits.answers_mb=32")
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const body = `{"sql":"SELECT range, repeat('x', 60000) FROM range(130)"}`
	for range 6 {
		c, err := net.Dial("tcp", g.api)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil { // the kernel does not take the answer
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", g.secret["victor"], len(body), body)
	}
	held := regexp.MustCompile(`(?m)^quell_server_answer_bytes (\S+)$`)
	olga := *g.running
	olga.token = g.secret["olga"]
	quelltest.Until(t, "the first answer waits for its reader", quelltest.Paced(func() bool {
		_, text := olga.get("/metrics")
		m := held.FindStringSubmatch(text)
		if m == nil {
			return false
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil || n > 17<<20 {
			t.Fatalf("%s bytes are held, %v", m[1], err)
		}
		return n > 7<<20
	}))
	if now := heap(); now > before+24<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, now)
	}
	status, text := olga.ask("POST", "/v1/query", body)
	if status != http.StatusOK || len(text) < 7_800_000 || !strings.HasSuffix(text, "]}\n") {
		t.Errorf("another user's answer: %d, %d bytes, %.100s", status, len(text), text)
	}
}

// TestNATSIsBounded: a message that is too large, and too many subscriptions, are refused.
func TestNATSIsBounded(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	nc, err := nats.Connect("nats://"+g.bus, unhurried(), login(t, g.credentials(t, authority.Agent, "m1", time.Hour), credential.Specs))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish(wire.SampleSubject("m1"), make([]byte, 2<<20)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("2 MB: %v", err)
	}
	nothing := make(chan *nats.Msg, 1) // one channel for all: separate ones would have room for 65,536 each
	for i := range 10_001 {
		if _, err := nc.ChanSubscribe(wire.SpecSubject(fmt.Sprint("job", i), "p"), nothing); err != nil {
			t.Fatal(err)
		}
	}
	quelltest.Until(t, "there are too many subscriptions", quelltest.Paced(func() bool {
		return nc.LastError() != nil && strings.Contains(strings.ToLower(nc.LastError().Error()), "maximum subscriptions")
	}))
}

// uplink opens an agent's side with a file of credentials.
func (r *running) uplink(t *testing.T, machine, creds string, change func(*bus.Options)) *bus.Uplink {
	t.Helper()
	o := bus.Options{URL: "nats://" + r.bus, Name: machine, Credentials: creds}
	if change != nil {
		change(&o)
	}
	up, err := bus.OpenUplink(bus.UplinkOptions{Options: o, Dir: t.TempDir(), MaxBytes: bus.MinSpool,
		Decided: func(context.Context) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { up.Close() })
	return up
}
