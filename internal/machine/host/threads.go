package host

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// OwnThread calls f in a goroutine with a thread of its own, which ends with it unless f
// calls runtime.UnlockOSThread: what f changes of its thread, such as its CPUs or its network
// namespace, ends with it. It is never the process's first thread, which Go does not end, and
// whose state /proc shows as the process's.
func OwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			f()
			return
		}
		begun := make(chan struct{})
		go func() {
			runtime.LockOSThread() // another thread: the first one is locked
			close(begun)
			f()
		}()
		<-begun
		runtime.UnlockOSThread()
	}()
}

// SetAffinity sets the CPUs on which a thread may run: sched_setaffinity(2).
func SetAffinity(tid int, set sample.Set) error {
	var mask unix.CPUSet
	for _, n := range set.Numbers() {
		mask.Set(n)
	}
	return unix.SchedSetaffinity(tid, &mask)
}

// Affinity reads the CPUs on which a thread may run: sched_getaffinity(2), which omits
// CPUs that are outside its cpuset or offline.
func Affinity(tid int) (sample.Set, error) {
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &mask); err != nil {
		return nil, err
	}
	var set sample.Set
	for n := range len(mask) * 64 {
		if mask.IsSet(n) {
			set = set.With(n)
		}
	}
	return set, nil
}

// PlaceThreads sets the affinity of all threads, until no new one is listed: a thread that
// starts in between has its parent's affinity, old or new. Threads may end meanwhile.
func PlaceThreads(list func() ([]int, error), set sample.Set) error {
	done := map[int]bool{}
	for fresh := true; fresh; {
		threads, err := list()
		if err != nil {
			return err
		}
		fresh = false
		for _, tid := range threads {
			if done[tid] {
				continue
			}
			done[tid], fresh = true, true
			if err := SetAffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("place thread %d on CPUs %s: %w", tid, set, err)
			}
		}
	}
	return nil
}

// ThreadsOf lists the threads of a process.
func ThreadsOf(pid int) ([]int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	var all []int
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, tid)
		}
	}
	return all, err
}

// WriteFile writes to a file that must exist, as a kernel file does.
func WriteFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// ReserveThreads makes Go's runtime start n threads now. It keeps them, idle, for calls that
// block: a program that needs a further thread when tasks have used up all of the machine's
// ends at once.
func ReserveThreads(n int) {
	var started, ended sync.WaitGroup
	all := make(chan struct{})
	for range n {
		started.Add(1)
		ended.Go(func() {
			runtime.LockOSThread() // each needs a thread of its own
			defer runtime.UnlockOSThread()
			started.Done()
			<-all
		})
	}
	started.Wait()
	close(all)
	ended.Wait()
}
