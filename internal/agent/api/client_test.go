package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// agent serves h on a socket and records the requests.
func agent(t *testing.T, h http.HandlerFunc) (c *Client, asked *string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked = new(string)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*asked = r.Method + " " + r.URL.String() + " " + string(body)
		h(w, r)
	})}
	done := make(chan bool)
	go func() { s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Close(); <-done })
	return NewClient(socket), asked
}

// Each call sends the expected request.
func TestRequests(t *testing.T) {
	c, asked := agent(t, func(w http.ResponseWriter, r *http.Request) {
		answer := any(Done{Message: "done", ID: "cap-1"})
		switch r.URL.Path {
		case PathStatus:
			answer = Status{Machine: "m", Mode: plan.On}
		case PathTasks:
			answer = []TaskView{{CPU: 1}}
		case PathOffenders:
			answer = []plan.Offender{{Job: "encode"}}
		case PathIncidents:
			answer = Incidents{[]incident.Record{{Incident: plan.Incident{ID: "inc-1"}}}, 3}
			if r.URL.Query().Has("id") {
				answer = incident.Record{Incident: plan.Incident{ID: r.URL.Query().Get("id")}}
			}
		}
		json.NewEncoder(w).Encode(answer)
	})
	ctx := context.Background()
	for _, x := range []struct {
		want string
		call func() (bool, error)
	}{
		{"GET /v1/status ", func() (bool, error) { s, err := c.Status(ctx); return s.Machine == "m" && s.Mode == plan.On, err }},
		{"GET /v1/tasks ", func() (bool, error) { v, err := c.Tasks(ctx); return len(v) == 1 && v[0].CPU == 1, err }},
		{"GET /v1/incidents? ", func() (bool, error) {
			v, err := c.Incidents(ctx, logbook.Query{})
			return len(v.Incidents) == 1 && v.Older == 3, err
		}},
		{"GET /v1/incidents?limit=5&open=true&since=1763726400000&victim=%2Fa%2A ", func() (bool, error) {
			v, err := c.Incidents(ctx, logbook.Query{Open: true, Since: 1763726400000, Victim: "/a*", Limit: 5})
			return len(v.Incidents) == 1, err
		}},
		{"GET /v1/incidents?id=a%26b ", func() (bool, error) { v, err := c.Incident(ctx, "a&b"); return v.ID == "a&b", err }},
		{`POST /v1/commands {"why":"r","cap":{"task":"t","rate":0.1,"for":"5m"}}`, func() (bool, error) {
			d, err := c.Command(ctx, command.CapTask("t", 0.1, 5*time.Minute, "r"))
			return d.ID == "cap-1" && d.Message == "done", err
		}},
		{"GET /v1/offenders ", func() (bool, error) {
			v, err := c.Offenders(ctx)
			return len(v) == 1 && v[0].Job == "encode", err
		}},
	} {
		if ok, err := x.call(); err != nil || !ok || strings.TrimSpace(*asked) != strings.TrimSpace(x.want) {
			t.Errorf("%s: asked %q, answer taken %v, %v", x.want, *asked, ok, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	const notQuell = "another program or version answers there, or one that wants TLS: check the address, and whether it begins with https://"
	for _, x := range []struct {
		body          string
		error, remedy string
	}{
		{`{"error":"no","remedy":"ask again"}`, "no", "ask again"},
		{"not JSON\nat all\n", "409 Conflict: not JSON", notQuell}, // perhaps not the agent
		{"", "409 Conflict", notQuell},
		{`{"error":""}`, `409 Conflict: {"error":""}`, notQuell},
	} {
		c, _ := agent(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, x.body)
		})
		_, err := c.Command(t.Context(), command.Command{})
		var r *RefusedError
		if !errors.As(err, &r) || r.Status != 409 || r.Error() != x.error || r.Remedy != x.remedy {
			t.Errorf("%s: %v", x.body, err)
		}
	}
	c, _ := agent(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "[") })
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "read the answer") {
		t.Errorf("an answer that is cut off: %v", err)
	}
}

// The remedy depends on why an agent cannot be reached.
func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, x := range []struct {
		socket string
		is     error
		remedy string
	}{
		{filepath.Join(dir, "none"), fs.ErrNotExist, "start quell-agent"},
		{dead, syscall.ECONNREFUSED, "start quell-agent"},
		{dir + "/" + strings.Repeat("x", 200), nil, "see the agent's log"},
	} {
		_, err := NewClient(x.socket).Status(t.Context())
		var u *UnreachableError
		if !errors.As(err, &u) || x.is != nil && !errors.Is(err, x.is) || !strings.HasPrefix(u.Remedy(), x.remedy) || !strings.Contains(err.Error(), x.socket) {
			t.Errorf("%s: %v", x.socket, err)
		}
	}
	denied := &UnreachableError{"s", &os.SyscallError{Syscall: "connect", Err: syscall.EACCES}}
	if !strings.Contains(denied.Remedy(), "socket_group") {
		t.Errorf("no permission: %s", denied.Remedy())
	}
}
