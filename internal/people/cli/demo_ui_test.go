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

// The dashboard shows the demo's own agent while the demo runs, and ends with it.
func TestDemoUI(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
	var b quelltest.Output
	a := &app.App{Out: &b, Err: &b, Zone: time.UTC, Now: time.Now, Getenv: func(string) string { return "" }, Terminal: func() (int, int, bool) { return 80, 24, false }}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	agent, done := shippedAgent.build(t), make(chan int)
	go func() {
		done <- a.Run(ctx, newRoot(a), []string{"demo", "--ui", "--listen", "127.0.0.1:0", "--agent", agent, "--seed", "3"})
	}()
	quelltest.Until(t, "the token was printed", quelltest.Paced(func() bool { return strings.Count(b.String(), "\n") >= 2 }))
	m := regexp.MustCompile(`^the dashboard of the demo, until it ends: (http://127\.0\.0\.1:\d+)\nits token:  ([A-Z2-7]{26,})\n`).FindStringSubmatch(b.String())
	if m == nil {
		t.Fatalf("it prints %q", b.String())
	}
	var text string
	quelltest.Until(t, "the demo's victim is in the dashboard's tasks", quelltest.Paced(func() bool {
		r, err := http.NewRequestWithContext(ctx, "GET", m[1]+"/v1/tasks", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Close = true
		r.Header.Set("Authorization", "Bearer "+m[2])
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		text = string(body)
		return resp.StatusCode == http.StatusOK && strings.Contains(text, `"class":"latency-sensitive"`) && strings.Contains(text, "quell-demo")
	}))
	cancel()
	if code := <-done; code != app.ExitNegative { // it was interrupted
		t.Errorf("exit code %d: %s", code, b.String())
	}
	if resp, err := http.Get(m[1] + "/"); err == nil { //nolint:noctx // a refused connection
		resp.Body.Close()
		t.Error("the dashboard outlives the demo")
	}
}

// A taken port is told before anything is made.
func TestTakenPort(t *testing.T) {
	f := newFake(t)
	s, err := openUI("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, args := range [][]string{{"ui"}, {"demo", "--ui"}} {
		r := quell(t, clitest.Env(f.socket), append(args, "--listen", s.address.String())...)
		if want := "quell: --listen " + s.address.String() + ": listen tcp " + s.address.String() + ": bind: address already in use\nwhat to do: another program listens there"; r.Code != app.ExitUsage || !strings.HasPrefix(r.Err, want) {
			t.Errorf("%v: exit code %d, %s", args, r.Code, r.Err)
		}
	}
}
