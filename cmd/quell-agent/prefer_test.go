package main

import "testing"

// Above 1 % of a CPU the agent is as any other process, until it needs less than half of that.
func TestStillPrefers(t *testing.T) {
	prefers := true
	for i, c := range []struct {
		share float64
		want  bool
	}{{0.001, true}, {0.01, true}, {0.011, false}, {0.009, false}, {0.005, false}, {0.004, true}, {0.009, true}, {1, false}} {
		if prefers = stillPrefers(prefers, c.share); prefers != c.want {
			t.Errorf("minute %d: %v at a share of %v", i, prefers, c.share)
		}
	}
}
