package host

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Prefer reaches every thread, those that come later inherit it, and it can be taken back.
func TestPrefer(t *testing.T) {
	ReserveThreads(4)
	check := func(nice int, slice bool) {
		t.Helper()
		tids, err := ThreadsOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		for _, tid := range tids {
			a, err := unix.SchedGetAttr(tid, 0)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil || int(a.Nice) != nice {
				t.Errorf("thread %d has nice %d, %v; want %d", tid, a.Nice, err, nice)
			}
			if a.Runtime != 0 && a.Runtime == uint64(shortestSlice) != slice { // 0: a kernel that has no slices
				t.Errorf("thread %d has a slice of %d ns", tid, a.Runtime)
			}
		}
	}
	was, err := Niceness()
	if err != nil {
		t.Fatal(err)
	}
	err = Prefer(-1)
	nice := -1
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		nice = was
	} else if err != nil {
		t.Fatal(err)
	}
	var started, ended sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		started.Add(1)
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			started.Done()
			<-done
		})
	}
	started.Wait()
	check(nice, true)
	if err := Prefer(was); err != nil {
		t.Fatal(err)
	}
	check(was, false)
	close(done)
	ended.Wait()
}
