package quelltest

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Streamer reads and writes 64 MiB repeatedly on a CPU, while it is switched on, until
// the test ends: it evicts what other tasks hold in a cache that the CPU shares.
func Streamer(t testing.TB, cpu int) (on func(bool)) {
	var yes atomic.Bool
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(os.NewSyscallError("sched_setaffinity", err))
			return
		}
		data := make([]int64, 8<<20)
		pause := time.NewTicker(time.Millisecond)
		defer pause.Stop()
		for {
			select {
			case <-stop:
				return
			case <-pause.C:
			}
			for yes.Load() {
				for i := 0; i < len(data); i += 8 {
					data[i]++
				}
			}
		}
	}()
	t.Cleanup(func() { yes.Store(false); close(stop); <-stopped })
	return yes.Store
}
