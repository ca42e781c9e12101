package main

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/commandtest"
)

// TestCommandsAtTheCommandLine: the command line validates a command as all other entry
// points do, with the same messages, before any request. A valid one is sent unchanged.
func TestCommandsAtTheCommandLine(t *testing.T) {
	env, toServer := fakeCluster(t)
	for _, c := range commandtest.Cases() {
		if c.Args == nil {
			continue
		}
		f, before := newFake(t), toServer()
		here := quell(t, utf8(f.socket), c.Args...)
		there := quell(t, env, append(c.Args, "--machine", "host-1")...)
		asked := f.requests()
		if c.Want == "" {
			if want := "POST /v1/commands " + c.JSON; here.code != exitOK || len(asked) != 1 || asked[0] != want {
				t.Errorf("%s: exit code %d, asked %q, want %q\n%s", c.Name, here.code, asked, want, here.err)
			}
			if want := "POST /v1/commands " + strings.Replace(c.JSON, "{", `{"machine":"host-1",`, 1); there.code != exitOK || toServer() != want {
				t.Errorf("%s: exit code %d, asked %q, want %q\n%s", c.Name, there.code, toServer(), want, there.err)
			}
			continue
		}
		for _, got := range []answer{here, there} {
			if got.code != exitUsage || !strings.Contains(got.err, c.Want) || len(asked) != 0 || toServer() != before {
				t.Errorf("%s: exit code %d, asked %q: %q, want %q", c.Name, got.code, asked, got.err, c.Want)
			}
		}
	}
}

// An unset variable as TASK does not make a command for all tasks.
func TestAnEmptyTaskIsNone(t *testing.T) {
	f := newFake(t)
	if got := quell(t, utf8(f.socket), "uncap", "", "--all", "--reason", "r"); got.code != exitUsage || len(f.requests()) != 0 {
		t.Errorf("exit code %d, asked %q: %s", got.code, f.requests(), got.err)
	}
}
