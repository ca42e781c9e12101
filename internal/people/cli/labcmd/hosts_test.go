package labcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// The verdict on a host depends on the kind of error, not on its text.
func TestVerdictsOfHosts(t *testing.T) {
	facts := &remote.Facts{System: "Linux"}
	lost := fmt.Errorf("begin: %w", &remote.LostError{Host: "h1"})
	for _, c := range []struct {
		name  string
		facts *remote.Facts
		err   error
		want  string
	}{
		{"well", facts, nil, hostOK},
		{"its command failed", facts, errors.New("exit status 1"), hostFailed},
		{"not let in", nil, errors.New("connection refused"), hostNone},
		{"cut off", facts, lost, hostLost},
		{"cut off while another thing failed", facts, errors.Join(errors.New("x"), lost), hostLost},
		{"another key", nil, &remote.KeyError{Host: "h1", Known: true}, hostUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := hostView{Facts: c.facts}
			v.judge(c.err)
			if v.Verdict != c.want || (v.Why == "") != (c.err == nil) {
				t.Errorf("%+v, want %s", v, c.want)
			}
		})
	}
}

// TestHostsThatAreNotThere: an unreachable host is reported with the others' verdicts,
// and the barrier does not wait for it.
func TestHostsThatAreNotThere(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hosts.yaml")
	text := "hosts:\n  h1: {address: \"127.0.0.1:1\", key: " + dir + "/none}\n  h2: {address: \"127.0.0.1:1\", key: " + dir + "/none}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", file}, {"run", file, "--", "true"}} {
		r := quell(t, clitest.Env(""), append([]string{"lab", "hosts", args[0], "--json"}, args[1:]...)...)
		var said struct {
			Hosts []hostView `json:"hosts"`
		}
		if bad := json.Unmarshal([]byte(r.Out), &said); bad != nil {
			t.Fatalf("%v in %s", bad, r.Out)
		}
		if r.Code != app.ExitNegative || !strings.Contains(r.Err, "2 of 2 hosts are not ok") || len(said.Hosts) != 2 ||
			said.Hosts[0].Verdict != hostNone || said.Hosts[1].Host != "h2" {
			t.Errorf("%v: %v, %+v", args, r, said)
		}
	}
}
