package wire_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/format/wire"
)

// A decision is unchanged by encoding and decoding.
func TestDecisionsComeBack(t *testing.T) {
	terms := command.Terms{Rate: 0.1, For: command.Duration(90 * time.Minute)}
	for _, want := range []command.Command{
		{Why: "a", Cap: &command.Cap{Target: command.Target{Task: "/a/b"}, Terms: terms}},
		{Why: "a", Cap: &command.Cap{Target: command.Target{Task: "/a/b"}, Terms: terms, Incident: "inc-7"}},
		{Why: "b", Cap: &command.Cap{Target: command.Target{Job: "web"}, Terms: terms}},
		{Why: "c", Uncap: &command.Target{Class: "batch"}},
		{Why: "d", Protect: &command.Target{All: true}},
		{Why: "e", Unprotect: &command.Target{Task: "/a"}},
		{Why: "f", Enforcement: &command.Enforcement{Mode: "on"}},
		{Why: "g", Pardon: &command.Pardon{Job: "encode"}},
		// An invalid command is decoded unchanged, for the agent to refuse.
		{Cap: &command.Cap{Target: command.Target{Task: "/a", All: true}, Terms: command.Terms{Rate: -1, For: -1e6}}},
	} {
		d := command.Decide("d1", "anna", 1000, want)
		for _, r := range []*command.Rollout{nil, {Step: 1, Since: 2000, Every: command.Duration(time.Hour), Below: math.MaxUint64, Stopped: "x"}} {
			d.Rollout = r
			data, err := wire.Marshal(&wire.Decisions{List: []*wire.Command{wire.EncodeDecision(&d)}})
			if err != nil {
				t.Fatal(err)
			}
			var m wire.Decisions
			if err := wire.Unmarshal(data, &m); err != nil {
				t.Fatal(err)
			}
			got, err := wire.DecodeDecision(m.List[0])
			if err != nil {
				t.Fatalf("%s: %v", want.String(), err)
			}
			if diff := cmp.Diff(d, got); diff != "" {
				t.Errorf("want −, got +:\n%s", diff)
			}
		}
	}
}

// TestCommandsThatAreNotUnderstood: an unknown command is not confused with another, and
// a number out of range does not become a valid one.
func TestCommandsThatAreNotUnderstood(t *testing.T) {
	if _, err := wire.DecodeDecision(&wire.Command{Why: "x"}); !errors.Is(err, wire.ErrUnknownCommand) {
		t.Errorf("got %v", err)
	}
	const wraps = math.MaxInt64/500000 + 60000 // in 64 bits it is a minute of nanoseconds
	for _, ms := range []int64{wraps, math.MaxInt64, math.MinInt64} {
		c, err := wire.DecodeDecision(&wire.Command{Why: "x", Do: &wire.Command_Cap_{Cap: &wire.Command_Cap{Task: "/a", Rate: 1, ForMs: ms}}})
		if err != nil {
			t.Fatal(err)
		}
		if c.Validate() == nil {
			t.Errorf("%d ms is taken for %s", ms, c.Cap.For)
		}
	}
}
