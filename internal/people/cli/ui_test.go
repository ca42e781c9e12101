package cli

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The pages and the agent's data are at the address that is printed, with the token that is
// printed, until the command is interrupted.
func TestUI(t *testing.T) {
	f := newFake(t)
	var b quelltest.Output
	a := &app.App{Out: &b, Err: io.Discard, Zone: time.UTC, Now: time.Now, Getenv: func(name string) string { return clitest.Env(f.socket)[name] },
		Terminal: func() (int, int, bool) { return 80, 24, false }}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan int)
	go func() { done <- a.Run(ctx, newRoot(a), []string{"ui", "--listen", "127.0.0.1:0"}) }()
	quelltest.Until(t, "the token was printed", func() bool { return strings.Count(b.String(), "\n") == 2 })
	m := regexp.MustCompile(`^the dashboard of node-3: (http://127\.0\.0\.1:\d+)\nits token:  ([A-Z2-7]{26,})\n$`).FindStringSubmatch(b.String())
	if m == nil {
		t.Fatalf("it prints %q", b.String())
	}
	for _, x := range []struct {
		path, token, want string
		status            int
	}{
		{"/", "", "<title>quell</title>", 200}, {"/v1/tasks", m[2], `"machine":"node-3"`, 200}, {"/v1/tasks", "", "a token is required", 401},
	} {
		r, err := http.NewRequestWithContext(ctx, "GET", m[1]+x.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Close = true
		if x.token != "" {
			r.Header.Set("Authorization", "Bearer "+x.token)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != x.status || !strings.Contains(string(text), x.want) {
			t.Errorf("%s: %d %s, %v", x.path, resp.StatusCode, text, err)
		}
	}
	cancel()
	if code := <-done; code != app.ExitOK {
		t.Errorf("exit code %d", code)
	}
}

// It is not shown to other machines, and not without an agent.
func TestUIRefuses(t *testing.T) {
	f := newFake(t)
	for _, listen := range []string{"0.0.0.0:9782", "192.0.2.1:80", ":9782", "9782", "example.com:80"} {
		if r := quell(t, clitest.Env(f.socket), "ui", "--listen", listen); r.Code != app.ExitUsage || !strings.Contains(r.Err, "address of this machine only") {
			t.Errorf("%s: %d %s", listen, r.Code, r.Err)
		}
	}
	if r := quell(t, clitest.Env("/nowhere"), "ui", "--listen", "127.0.0.1:0"); r.Code == app.ExitOK || !strings.Contains(r.Err, "start quell-agent") {
		t.Errorf("without an agent: %d %s", r.Code, r.Err)
	}
}

// TestAttackStalledReadersOfAPage: a user of the machine can ask for pages, which need no token, on all connections that
// there may be, and read nothing. Each is closed after some time.
func TestAttackStalledReadersOfAPage(t *testing.T) {
	s, err := openUI("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if s.web.WriteTimeout <= 0 || s.web.WriteTimeout > time.Minute {
		t.Errorf("an answer may take %s", s.web.WriteTimeout)
	}
}
