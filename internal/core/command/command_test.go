package command_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/commandtest"
)

// Each entry point has its own test of these cases; this tests what they rely on.
func TestCases(t *testing.T) {
	good := map[string]bool{}
	for _, c := range commandtest.Cases() {
		var got command.Command
		if c.JSON == "" || json.Unmarshal([]byte(c.JSON), &got) != nil || strings.Contains(c.JSON, "tasks") {
			continue // given in another form, or not JSON of a command
		}
		err := got.Validate()
		var invalid *command.InvalidError
		switch {
		case c.Want == "" && err != nil:
			t.Errorf("%s: %v", c.Name, err)
		case c.Want == "":
			good[got.Kind()] = true
			if text, err := json.Marshal(&got); err != nil || string(text) != c.JSON {
				t.Errorf("%s: %s, %v", c.Name, text, err)
			}
		case !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.Want):
			t.Errorf("%s: %v, want %q", c.Name, err, c.Want)
		}
	}
	if len(good) != 7 {
		t.Errorf("only %v are in valid cases", good)
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", time.Second: "1s", 90 * time.Second: "1m30s", 5 * time.Minute: "5m", 10 * time.Minute: "10m", 24 * time.Hour: "24h",
		90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s", -time.Hour: "-1h", 1500 * time.Millisecond: "1.5s"} {
		got, err := command.Duration(d).MarshalText()
		var back command.Duration
		if err != nil || string(got) != want || back.UnmarshalText(got) != nil || time.Duration(back) != d {
			t.Errorf("%s is %q, which is %s", d, got, back)
		}
	}
	var invalid *command.InvalidError
	d := command.Duration(7)
	if err := d.UnmarshalText([]byte(strings.Repeat("9", 9999))); !errors.As(err, &invalid) || len(err.Error()) > 200 || d != 7 {
		t.Errorf("%s: %v", d, err)
	}
}

// The kind and the object of a command in messages and audit logs.
func TestText(t *testing.T) {
	target := command.Target{Job: "web"}
	for _, c := range []struct {
		command.Command
		kind, want string
	}{
		{command.Command{Cap: &command.Cap{Target: target, Terms: command.Terms{Rate: 0.5, For: command.Duration(5 * time.Minute)}}}, "cap", "cap job web to 0.5 CPU-s/s for 5m"},
		{command.Command{Cap: &command.Cap{Target: command.Target{Task: "/a"}, Terms: command.Terms{Rate: 1, For: command.Duration(time.Minute)}, Incident: "inc-7"}}, "cap", "cap /a to 1 CPU-s/s for 1m in inc-7"},
		{command.Command{Uncap: &command.Target{All: true}}, "uncap", "uncap all tasks"},
		{command.Command{Protect: &command.Target{Task: "/a"}}, "protect", "protect /a"},
		{command.Command{Unprotect: &command.Target{Class: "batch"}}, "unprotect", "unprotect class batch"},
		{command.Command{Enforcement: &command.Enforcement{Mode: "on"}}, "enforcement", "enforcement on"},
		{command.Command{Pardon: &command.Pardon{Job: "encode"}}, "pardon", "pardon job encode"},
		{command.Command{Enforcement: &command.Enforcement{Mode: "on"}, For: command.Duration(2 * time.Hour)}, "enforcement", "enforcement on for 2h"},
		{command.Command{Reset: &command.Reset{Protect: &target}}, "reset", "reset protect job web"},
		{command.Command{Reset: &command.Reset{Decision: "x"}}, "reset", "reset decision x"},
		{command.Command{Uncap: &command.Target{Task: "/a", Job: "b"}}, "uncap", "uncap /a and job b"},
		{command.Command{Uncap: &target, Protect: &target}, "", " job web"},
	} {
		if got := c.String(); got != c.want || c.Kind() != c.kind {
			t.Errorf("%q of kind %q, want %q of %q", got, c.Kind(), c.want, c.kind)
		}
	}
}

func TestCovers(t *testing.T) {
	task := &sample.Task{Name: "/batch/job-1", Job: "job", Class: sample.Batch}
	for _, c := range []struct {
		command.Target
		want bool
	}{
		{command.Target{Task: "/batch/job-1"}, true}, {command.Target{Task: "job-1"}, false}, {command.Target{Job: "job"}, true}, {command.Target{Job: "other"}, false},
		{command.Target{Class: "batch"}, true}, {command.Target{Class: "best-effort"}, false}, {command.Target{All: true}, true}, {command.Target{}, false},
	} {
		if got := c.Matches(task); got != c.want {
			t.Errorf("%+v: %t", c.Target, got)
		}
	}
	// What was stored under its path still names a task that has a name by now.
	named := &sample.Task{Name: "vm/web", Cgroup: "/machine/web"}
	for text, want := range map[string]bool{"vm/web": true, "/machine/web": true, "web": false} {
		if got := (command.Target{Task: text}).Matches(named); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

func TestRank(t *testing.T) {
	for i, target := range []command.Target{{All: true}, {Class: "batch"}, {Job: "job"}, {Task: "/batch/job-1"}} {
		if got := target.Rank(); got != i+1 {
			t.Errorf("%s: %d, want %d", target, got, i+1)
		}
	}
}

// Text that JSON or protobuf would change in transit is refused at the entry.
func TestTextThatIsNone(t *testing.T) {
	c := command.Command{Why: "r\xff", Uncap: &command.Target{Task: "/a\xfe"}}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), `task "/a\xfe": want UTF-8; why "r\xff": want UTF-8`) {
		t.Errorf("got %v", err)
	}
}

func TestModes(t *testing.T) {
	for _, m := range []command.Mode{command.Off, command.Advise, command.On} {
		text, err := m.MarshalText()
		var back command.Mode = 99
		if err != nil || back.UnmarshalText(text) != nil || back != m {
			t.Errorf("%s comes back as %d, %v", text, back, err)
		}
	}
	for _, s := range []string{"", "ON", "hard"} {
		if _, err := command.ParseMode(s); err == nil {
			t.Errorf("%q is a mode", s)
		}
	}
}
