package cli

import (
	"testing"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A mode for a time leaves the one before in the list, which is not in force meanwhile.
func TestAModeBehindANewerOne(t *testing.T) {
	mode := func(id, machine string, at sample.Millis) cluster.Decision {
		d := cluster.Decision{Machine: machine, Decision: command.Decision{ID: id, At: at}}
		d.Enforcement = &command.Enforcement{Mode: "on"}
		return d
	}
	all := []cluster.Decision{mode("a", "", 1), mode("b", "", 3), mode("c", "m1", 2), mode("d", "m2", 4), mode("e", "", 5)}
	all[4].Rollout = &command.Rollout{} // not on all machines
	for i, want := range []string{"b", "", "b", ""} {
		if got := newerMode(&all[i], all); got != want {
			t.Errorf("%s is behind %q, want %q", all[i].ID, got, want)
		}
	}
}
