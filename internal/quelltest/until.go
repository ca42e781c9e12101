package quelltest

import (
	"testing"
	"time"
)

// Until waits for cond to hold and fails the test if it does not within the
// deadline. what names the awaited thing. Never a sleep: a fast machine does
// not wait and a slow one does not fail.
func Until(t testing.TB, deadline time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", deadline, what)
		}
	}
}
