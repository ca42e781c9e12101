package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestKeysRotate: the command replaces the key that signs credentials while the server runs.
// Agents of the former key go on and obey until the overlap ends; then they are cut off, and
// refused with the cause in the audit log, until they have new credentials.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	set := "state_dir=" + g.state
	command := func(args ...string) string {
		t.Helper()
		out, err := quellServer(t, append(args, "--set", set)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	own := func() []byte {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(g.state, "keys", "server.creds"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	m1 := g.victim(t, "m1")
	obeyed := func() bool { return g.as("olga", "POST", "/v1/commands", capping) == http.StatusOK }
	quelltest.Until(t, "the agent obeys", obeyed)

	first := own()
	if out := command("keys", "rotate", "--overlap", "1h"); !strings.Contains(out, "valid until "+time.Now().UTC().Format("2006-")) {
		t.Errorf("rotate: %q", out)
	}
	quelltest.Until(t, "the server has credentials of the new key", quelltest.Paced(func() bool { return !bytes.Equal(own(), first) }))
	if !obeyed() {
		t.Error("the agent does not obey the new key")
	}
	m1.Samples(one("m1"))
	g.untilSQL("its sample is stored", "SELECT count(*) FROM samples WHERE machine = 'm1'", "[1]")
	if out := command("keys"); !strings.Contains(out, ": agent m1\n") || strings.Contains(out, ": server") {
		t.Errorf("keys: %q", out)
	}
	if out := command("keys", "--json"); strings.Count(out, `"key"`) != 2 || strings.Count(out, `"until"`) != 1 {
		t.Errorf("keys: %q", out)
	}
	file := filepath.Join(t.TempDir(), "m2.creds")
	if err := os.WriteFile(file, []byte(command("credentials", "agent", "m2")), 0o600); err != nil {
		t.Fatal(err)
	}
	m2 := g.uplink(t, "m2", file, nil)
	quelltest.Until(t, "an agent with credentials of the new key is let in", quelltest.Paced(func() bool { return m2.Err() == nil }))

	command("keys", "rotate", "--overlap", "0")
	quelltest.Until(t, "the agent of the key without overlap is cut off", quelltest.Paced(func() bool { return m2.Err() != nil }))
	m2.Samples(one("m2"))
	g.untilSQL("the refusal is in the audit log", "SELECT count(*) > 0 FROM audit WHERE what = 'bus: connect' AND who = '' AND outcome LIKE '%the key that signed the credentials was replaced'", "[true]")
	if err := os.WriteFile(file, []byte(command("credentials", "agent", "m2", "--ttl", "1h")), 0o600); err != nil {
		t.Fatal(err)
	}
	g.untilSQL("with new credentials its sample is stored", "SELECT count(*) FROM samples WHERE machine = 'm2'", "[1]")
	if err := m1.Err(); err != nil {
		t.Errorf("the agent whose key is still in its overlap: %v", err)
	}
	if _, err := quellServer(t, "keys", "rotate", "--overlap", "-1h", "--set", set); err == nil {
		t.Error("a negative overlap is accepted")
	}
}
