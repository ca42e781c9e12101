package server

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
)

func TestTokensFile(t *testing.T) {
	secret, line, err := NewToken("alice", Operator, "2027-01-31")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# who may\n\n" + line + "\n")
	known, err := LoadTokens(file)
	if err != nil {
		t.Fatal(err)
	}
	if k, why := known.find(sumOf(secret), time.Date(2027, 1, 31, 23, 0, 0, 0, time.UTC)); why != "" || k.name != "alice" || k.scope != Operator {
		t.Errorf("%+v %q", k, why)
	}
	if _, why := known.find(sumOf(secret), time.Date(2027, 2, 1, 1, 0, 0, 0, time.UTC)); !strings.Contains(why, "2027-01-31") {
		t.Errorf("a day later: %q", why)
	}
	// A change counts at the next refresh. A faulty file changes nothing; one report.
	write("alice admin sha256:00\n")
	if err := known.refresh(); err == nil || known.refresh() != nil || known.err() == nil {
		t.Errorf("a file that is wrong: %v, then %v", err, known.err())
	}
	if _, why := known.find(sumOf(secret), start); why != "" {
		t.Errorf("by a file that is wrong alice is out: %s", why)
	}
	write("")
	if err := known.refresh(); err != nil || known.err() != nil {
		t.Error(err)
	}
	if _, why := known.find(sumOf(secret), start); why != "unknown token" {
		t.Errorf("revoked: %q", why)
	}
	if strings.Contains(line, secret) {
		t.Error("the line gives the token away")
	}
	_, err = parseTokens("f", []byte("a viewer\nb admin sha256:00\nc viewer sha256:xyz\nd viewer "+strings.Fields(line)[2]+" tomorrow\n"+line+"\n"+line))
	for _, want := range []string{"f:1: 2 fields", `f:2: scope "admin"`, "f:3: invalid SHA-256", `f:4: day "tomorrow"`, "f:6: duplicate token"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if by, err := parseTokens("f", []byte("# "+strings.Repeat("x", 70_000)+"\n"+line)); err != nil || len(by) != 1 {
		t.Errorf("after a long line: %d tokens, %v", len(by), err)
	}
	if _, _, err := NewToken("two words", Viewer, ""); err == nil {
		t.Error("a name of two words was taken")
	}
}

func TestCallersAreHeldToTheirRate(t *testing.T) {
	now := start
	c := newCallers(2, 3, func() time.Time { return now })
	for i := range 3 {
		if !c.allow("a", false) {
			t.Errorf("request %d of the burst was refused", i+1)
		}
	}
	if c.allow("a", false) {
		t.Error("a fourth at once was let in")
	}
	if !c.allow("b", false) {
		t.Error("another caller was refused")
	}
	now = now.Add(500 * time.Millisecond)
	if !c.allow("a", false) || c.allow("a", false) {
		t.Error("half a second lets one in, at two a second")
	}
	for i := range maxCallers {
		c.allow(fmt.Sprint(i), false)
	}
	if c.allow("one too many", false) {
		t.Error("more callers than are remembered")
	}
	if !c.allow("token alice", true) {
		t.Error("a caller with a token is refused because of callers without one")
	}
	now = now.Add(time.Hour)
	if !c.allow("one later", false) || len(c.by) > 10 {
		t.Errorf("those that are full again are not forgotten: %d", len(c.by))
	}
}

// A client that is refused repeatedly is in the audit log twice: at once, and with the
// number of repetitions. The number of kinds per minute is bounded.
func TestRefusalsDoNotFillTheAudit(t *testing.T) {
	b := newBench(t, nil)
	for range 1000 {
		b.Refused(store.Audit{Who: "agent.m1", From: "192.0.2.1", Scope: "agent", What: "publish", Target: "sample.m2", Outcome: "no"})
	}
	for i := range maxKinds + 9 {
		b.Refused(store.Audit{From: fmt.Sprint("192.0.2.", i%100), What: "publish", Target: fmt.Sprint("x", i), Outcome: "no"})
	}
	if err := b.noteAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Refused(store.Audit{Who: "agent.m1", From: "192.0.2.1", Scope: "agent", What: "publish", Target: "sample.m2", Outcome: "no"})
	var m1, all []string
	for _, a := range b.audits(t) {
		all = append(all, a.Outcome)
		if a.Who == "agent.m1" && a.Target == "sample.m2" && a.Scope == "agent" {
			m1 = append(m1, a.Outcome)
		}
	}
	if want := []string{"refused: no", "refused 999 times more: no", "refused: no"}; !slices.Equal(m1, want) {
		t.Errorf("got %q, want %q", m1, want)
	}
	if want := "refused 10 times more, of further kinds"; !slices.Contains(all, want) || len(all) != maxKinds+3 {
		t.Errorf("%d entries, want %d with %q", len(all), maxKinds+3, want)
	}
}

// TestAttackRefusalsThatHideOthers: a client that is refused in ever new ways hides no refusal of others.
func TestAttackRefusalsThatHideOthers(t *testing.T) {
	b := newBench(t, nil)
	for i := range 2 * maxKinds {
		b.Refused(store.Audit{Who: "agent.evil", From: "192.0.2.1", What: "bus: publish", Target: fmt.Sprint("x", i), Outcome: "no"})
	}
	b.Refused(store.Audit{From: "192.0.2.2", What: "POST /v1/commands", Outcome: "unknown token"})
	all := b.audits(t)
	if last := all[len(all)-1]; len(all) != mostKinds+1 || last.From != "192.0.2.2" {
		t.Errorf("%d entries, the last %+v", len(all), last)
	}
}

// TestAddressesOfOneClient: a client of IPv6 has 2⁶⁴ addresses. They are one caller.
func TestAddressesOfOneClient(t *testing.T) {
	for from, want := range map[string]string{"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "::ffff:192.0.2.1", "2001:db8::1": "2001:db8::/64", "2001:db8::ffff:1": "2001:db8::/64",
		"2001:db8:0:1::1": "2001:db8:0:1::/64", "fe80::1%eth0": "fe80::/64", "": ""} {
		if got := network(from); got != want {
			t.Errorf("%s: %s, want %s", from, got, want)
		}
	}
}
