package cli

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
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
		here := quell(t, clitest.Env(f.socket), c.Args...)
		there := quell(t, env, append(c.Args, "--machine", "host-1")...)
		asked := f.requests()
		if c.Want == "" {
			if want := "POST /v1/commands " + c.JSON; here.Code != app.ExitOK || len(asked) != 1 || asked[0] != want {
				t.Errorf("%s: exit code %d, asked %q, want %q\n%s", c.Name, here.Code, asked, want, here.Err)
			}
			if want := "POST /v1/commands " + strings.Replace(c.JSON, "{", `{"machine":"host-1",`, 1); there.Code != app.ExitOK || toServer() != want {
				t.Errorf("%s: exit code %d, asked %q, want %q\n%s", c.Name, there.Code, toServer(), want, there.Err)
			}
			continue
		}
		for _, got := range []clitest.Answer{here, there} {
			if got.Code != app.ExitUsage || !strings.Contains(got.Err, c.Want) || len(asked) != 0 || toServer() != before {
				t.Errorf("%s: exit code %d, asked %q: %q, want %q", c.Name, got.Code, asked, got.Err, c.Want)
			}
		}
	}
}

// TestTasksOfAnyName: a task whose name is no UTF-8 can be named by its bytes, or by what the
// listings print, and escape codes in names and messages do not reach the terminal.
func TestTasksOfAnyName(t *testing.T) {
	for arg, want := range map[string]string{
		"/a\xff":      `"task":"\"/a\\xff\""`,
		`"/a\xff"`:    `"task":"\"/a\\xff\""`,
		"/a\x1b[2J":   `"task":"/a\u001b[2J"`,
		`"/a\x1b[2J"`: `"task":"\"/a\\x1b[2J\""`,
	} {
		f := newFake(t)
		got := quell(t, clitest.Env(f.socket), "uncap", arg, "--reason", "r")
		if asked := f.requests(); got.Code != app.ExitOK || len(asked) != 1 || !strings.Contains(asked[0], want) {
			t.Errorf("%q: %d, asked %q, want %s\n%s", arg, got.Code, asked, want, got.Err)
		}
	}
	f := newFake(t)
	if got := quell(t, clitest.Env(f.socket), "cap", `"/a`, "--rate", "1", "--for", "5m", "--reason", "r"); got.Code != app.ExitUsage || !strings.Contains(got.Err, "quoted as in Go") {
		t.Errorf("%d %s", got.Code, got.Err)
	}
}

// An unset variable as TASK does not make a command for all tasks.
func TestAnEmptyTaskIsNone(t *testing.T) {
	f := newFake(t)
	if got := quell(t, clitest.Env(f.socket), "uncap", "", "--all", "--reason", "r"); got.Code != app.ExitUsage || len(f.requests()) != 0 {
		t.Errorf("exit code %d, asked %q: %s", got.Code, f.requests(), got.Err)
	}
}
