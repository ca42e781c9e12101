package workload

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/chase"
)

// chase follows a random cycle through every line of the working set: each
// load's address is the last load's value, so neither the prefetcher nor the
// out-of-order core hides a miss.
func (w *worker) chase() error {
	set, free, err := chase.Map(w.spec.Set)
	if err != nil {
		return err
	}
	defer free()
	chase.Link(set, w.spec.Seed)
	at := uint64(0)
	for !w.stop.Load() {
		at = chase.Walk(set, at, w.spec.Steps)
		if err := w.progress.add(1); err != nil {
			return err
		}
	}
	return nil
}

// stream reads and writes one word of every line of a buffer that is larger than any
// cache, in bursts.
func (w *worker) stream() error {
	size := w.spec.Set
	if size == 0 {
		size = max(4*lastLevelCache(), 128<<20)
	}
	size = max(size, chase.Line)
	set, free, err := chase.Map(size)
	if err != nil {
		return err
	}
	defer free()
	const chunk = 256 << 10 / 8
	at := 0
	return w.batch(func() {
		end := min(at+chunk, len(set))
		touch(set[at:end])
		if at = end; at == len(set) {
			at = 0
		}
	})
}

//go:noinline
func touch(set []uint64) {
	for i := 0; i < len(set); i += chase.Line / 8 {
		set[i]++
	}
}

// lastLevelCache is the size in bytes of CPU 0's largest cache, 0 if sysfs has none
// (arm64 guests).
func lastLevelCache() int64 {
	var largest int64
	for i := range 8 {
		text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", i))
		if err != nil {
			break
		}
		// "32768K": the kernel always writes KiB.
		k, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"), 10, 64)
		if err == nil {
			largest = max(largest, k<<10)
		}
	}
	return largest
}

// call makes a few hundred system calls of two sorts.
func (w *worker) call() {
	for range 100 {
		unix.Getppid()
		_, _ = unix.Pread(w.zero, w.block[:], 0)
	}
}
