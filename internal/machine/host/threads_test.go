package host

import (
	"os"
	"testing"
)

// The threads that are reserved stay: as many calls as that can block at once without a new one.
func TestReservedThreadsStay(t *testing.T) {
	const n = 24
	ReserveThreads(n)
	before, err := ThreadsOf(os.Getpid())
	if err != nil || len(before) < n {
		t.Fatalf("%d threads, %v; want %d", len(before), err, n)
	}
	ReserveThreads(n / 2)
	after, err := ThreadsOf(os.Getpid())
	if err != nil || len(after) > len(before)+2 { // the runtime's own may be new
		t.Errorf("%d threads, then %d, %v", len(before), len(after), err)
	}
}
