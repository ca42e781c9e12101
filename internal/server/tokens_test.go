package server

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTokensFile(t *testing.T) {
	secret, line, err := NewToken("alice", Operator, "2027-01-31")
	if err != nil {
		t.Fatal(err)
	}
	known, err := parseTokens("f", []byte("# who may\n\n"+line+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if k, why := known.find(secret, time.Date(2027, 1, 31, 23, 0, 0, 0, time.UTC)); why != "" || k.name != "alice" || k.scope != Operator {
		t.Errorf("%+v %q", k, why)
	}
	if _, why := known.find(secret, time.Date(2027, 2, 1, 1, 0, 0, 0, time.UTC)); !strings.Contains(why, "2027-01-31") {
		t.Errorf("a day later: %q", why)
	}
	if strings.Contains(line, secret) {
		t.Error("the line gives the token away")
	}
	_, err = parseTokens("f", []byte("a viewer\nb admin sha256:00\nc viewer sha256:xyz\nd viewer "+strings.Fields(line)[2]+" tomorrow\n"+line+"\n"+line))
	for _, want := range []string{"f:1: 2 words", `f:2: scope "admin"`, "f:3: no SHA-256", `f:4: day "tomorrow"`, "f:6: the same token again"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if _, _, err := NewToken("two words", Viewer, ""); err == nil {
		t.Error("a name of two words was taken")
	}
}

func TestCallersAreHeldToTheirRate(t *testing.T) {
	now := start
	c := newCallers(2, 3, func() time.Time { return now })
	for i := range 3 {
		if !c.take("a") {
			t.Errorf("request %d of the burst was refused", i+1)
		}
	}
	if c.take("a") {
		t.Error("a fourth at once was let in")
	}
	if !c.take("b") {
		t.Error("another caller was refused")
	}
	now = now.Add(500 * time.Millisecond)
	if !c.take("a") || c.take("a") {
		t.Error("half a second lets one in, at two a second")
	}
	for i := range maxCallers {
		c.take(fmt.Sprint(i))
	}
	if c.take("one too many") {
		t.Error("more callers than are remembered")
	}
	now = now.Add(time.Hour)
	if !c.take("one later") || len(c.by) > 10 {
		t.Errorf("those that are full again are not forgotten: %d", len(c.by))
	}
}
