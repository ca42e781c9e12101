package host

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// With so many calls some begin on the process's first thread.
func TestOwnThread(t *testing.T) {
	threads := make(chan int)
	for range 2000 {
		OwnThread(func() { threads <- unix.Gettid() })
		tid := <-threads
		if tid == os.Getpid() {
			t.Fatal("called on the first thread")
		}
		quelltest.Until(t, "the thread has ended", func() bool {
			_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
			return err != nil
		})
	}
}

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
