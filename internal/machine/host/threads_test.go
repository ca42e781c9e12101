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
