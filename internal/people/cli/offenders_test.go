package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestOffenders(t *testing.T) {
	f := newFake(t)
	got := quell(t, utf8(f.socket), "offenders")
	if got.code != exitOK {
		t.Fatal(got.err)
	}
	golden(t, "offenders", got.out)
	var all []map[string]any
	if err := json.Unmarshal([]byte(quell(t, utf8(f.socket), "offenders", "--json").out), &all); err != nil || len(all) != 2 || all[0]["confined"] != true || all[1]["job"] != "reports" {
		t.Errorf("%v, %v", all, err)
	}
	if got := quell(t, utf8(f.socket), "__complete", "pardon", ""); !strings.Contains(got.out, "encode\nreports\n") {
		t.Errorf("completion offers %q", got.out)
	}
}

func TestPardon(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"pardon encode", exitUsage, "why is empty"},
		{"pardon --reason r", exitUsage, "accepts 1 arg"},
		{"pardon encode --reason r", exitOK, "it is done"},
		{"pardon nobody --reason r", exitNegative, "see quell top"},
	} {
		got := quell(t, utf8(f.socket), strings.Fields(c.args)...)
		if got.code != c.code || !strings.Contains(got.out+got.err, c.says) {
			t.Errorf("%s: %d %s%s", c.args, got.code, got.out, got.err)
		}
	}
	if want := `POST /v1/commands {"why":"r","pardon":{"job":"encode"}}`; !slices.Contains(f.requests(), want) {
		t.Errorf("the agent was asked %q, want %s", f.requests(), want)
	}
}
