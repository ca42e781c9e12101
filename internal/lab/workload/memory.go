package workload

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// line is the size of a cache line in bytes: 64 on every x86 and most arm64 machines.
// Where it is 128 each fetch also brings the neighbour line, which has no use.
const line = 64

// mapMemory maps n bytes outside the Go heap, in huge pages where the kernel provides them,
// so that address translation adds little to the measurement.
func mapMemory(n int64) ([]uint64, func(), error) {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	// Without CONFIG_TRANSPARENT_HUGEPAGE this fails; small pages are sufficient then.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), n/8), func() { _ = unix.Munmap(b) }, nil
}

// chase follows a random cycle through every line of the working set: each
// load's address is the last load's value, so neither the prefetcher nor the
// out-of-order core hides a miss.
func (w *worker) chase() error {
	set, free, err := mapMemory(w.spec.Set)
	if err != nil {
		return err
	}
	defer free()
	buildChain(set, w.spec.Seed)
	at := uint64(0)
	for !w.stop.Load() {
		at = walkChain(set, at, w.spec.Steps)
		if err := w.progress.add(1); err != nil {
			return err
		}
	}
	return nil
}

// buildChain writes one cycle through all lines of the set: the first word of each
// holds the index of the next one's (Sattolo's algorithm).
func buildChain(set []uint64, seed uint64) {
	const per = line / 8
	n := len(set) / per
	for i := range n {
		set[i*per] = uint64(i * per)
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for i := n - 1; i > 0; i-- {
		j := r.IntN(i)
		set[i*per], set[j*per] = set[j*per], set[i*per]
	}
}

//go:noinline
func walkChain(set []uint64, at uint64, steps int) uint64 {
	for range steps {
		at = set[at]
	}
	return at
}

// stream reads and writes one word of every line of a buffer that is larger than any
// cache, in bursts.
func (w *worker) stream() error {
	size := w.spec.Set
	if size == 0 {
		size = max(4*lastLevelCache(), 128<<20)
	}
	size = max(size, line)
	set, free, err := mapMemory(size)
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
	for i := 0; i < len(set); i += line / 8 {
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
