package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

func TestOffenders(t *testing.T) {
	f := newFake(t)
	got := quell(t, clitest.Env(f.socket), "offenders")
	if got.Code != app.ExitOK {
		t.Fatal(got.Err)
	}
	clitest.Golden(t, *update, "offenders", got.Out)
	var all []map[string]any
	if err := json.Unmarshal([]byte(quell(t, clitest.Env(f.socket), "offenders", "--json").Out), &all); err != nil || len(all) != 2 || all[0]["confined"] != true || all[1]["job"] != "reports" {
		t.Errorf("%v, %v", all, err)
	}
	if got := quell(t, clitest.Env(f.socket), "__complete", "pardon", ""); !strings.Contains(got.Out, "encode\nreports\n") {
		t.Errorf("completion offers %q", got.Out)
	}
}

func TestPardon(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"pardon encode", app.ExitUsage, "why is empty"},
		{"pardon --reason r", app.ExitUsage, "accepts 1 arg"},
		{"pardon encode --reason r", app.ExitOK, "it is done"},
		{"pardon nobody --reason r", app.ExitNegative, "see quell top"},
	} {
		got := quell(t, clitest.Env(f.socket), strings.Fields(c.args)...)
		if got.Code != c.code || !strings.Contains(got.Out+got.Err, c.says) {
			t.Errorf("%s: %d %s%s", c.args, got.Code, got.Out, got.Err)
		}
	}
	if want := `POST /v1/commands {"why":"r","pardon":{"job":"encode"}}`; !slices.Contains(f.requests(), want) {
		t.Errorf("the agent was asked %q, want %s", f.requests(), want)
	}
}
