package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	cmd "github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestKeeper: the server's own credentials and its signing key are replaced while it runs,
// agents accept decisions by the new key, and credentials that end soon are counted.
func TestKeeper(t *testing.T) {
	t.Parallel()
	r := &running{t: t, state: t.TempDir(), bus: quelltest.FreeAddress(t)}
	c, err := config.LoadServer("", nil, []string{"state_dir=" + r.state, "bus.listen=" + r.bus})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	link, err := connect(t.Context(), c, nil, log, func(embedded.Refusal) {})
	if err != nil {
		t.Fatal(err)
	}
	defer link.close()
	now := time.Now()
	k := newKeeper(link, c, log, now)
	g := &guarded{running: r}
	if g.keys, err = authority.Load(keysDir(c)); err != nil {
		t.Fatal(err)
	}
	m1 := g.victim(t, "m1") // valid for an hour
	made := 0
	obeys := func(when string) {
		made++
		id := fmt.Sprint("decision ", made)
		quelltest.Until(t, "the agent follows the server "+when, quelltest.Paced(func() bool {
			_, err := link.bus.Decide(t.Context(), "m1", func(list []cmd.Decision) ([]cmd.Decision, error) {
				return cmd.Add(list, cmd.Decide(id, "anna", sample.At(now), cmd.Command{Why: "r", Enforcement: &cmd.Enforcement{Mode: "off"}})), nil
			})
			all := m1.Decisions()
			return err == nil && len(all) == 1 && all[0].Id == id
		}))
	}
	obeys("at first")
	own := func() []byte {
		text, err := os.ReadFile(filepath.Join(keysDir(c), "server.creds"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := own()
	k.step(now)
	if got := k.credentials(); got.Due != 0 || got.Expires.Sub(now).Round(time.Hour) != ownLife || !bytes.Equal(own(), first) {
		t.Errorf("at first: %+v", got)
	}
	k.step(now.Add(50 * time.Minute))
	if got := k.credentials(); got.Due != 1 || !bytes.Equal(own(), first) {
		t.Errorf("before m1's end: %+v", got)
	}
	if at, _ := m1.Expires(now); at.Sub(now).Round(time.Minute) != time.Hour {
		t.Errorf("the agent knows %v", at)
	}
	k.step(now.Add(renewEvery))
	if bytes.Equal(own(), first) {
		t.Error("the server's credentials are the same")
	}
	obeys("with a new key")
}

// TestEnrolment: an agent that starts with credentials for enrolment gets others from the
// server, for a key of its own.
func TestEnrolment(t *testing.T) {
	t.Parallel()
	r := start(t)
	text, err := quellServer(t, "credentials", "agent", "m1", "--ttl", "2160h", "--enrol", "1h", "--set", "state_dir="+r.state)
	file := filepath.Join(t.TempDir(), "m1.creds")
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	up := r.uplink(t, "m1", file, nil)
	quelltest.Until(t, "the agent has credentials that last", quelltest.Paced(func() bool {
		at, due := up.Expires(time.Now())
		return due == nil && time.Until(at) > 2000*time.Hour
	}))
	up.Samples(one("m1"))
	r.untilSQL("the sample is there", "SELECT machine FROM samples", `["m1"]`)
	for _, args := range [][]string{{"viewer", "v", "--enrol", "1h", "--ttl", "2h"}, {"agent", "m1", "--enrol", "1h"}, {"agent", "m1", "--enrol", "-1h", "--ttl", "2h"}} {
		if _, err := quellServer(t, append(append([]string{"credentials"}, args...), "--set", "state_dir="+r.state)...); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
