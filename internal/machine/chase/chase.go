// Package chase reads memory along a random cycle: each load's address is the last load's
// value, so neither the prefetcher nor the out-of-order core hides a miss.
package chase

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Line is the size of a cache line in bytes: 64 on every x86 and most arm64 machines.
// Where it is 128 each fetch also brings the neighbour line, which has no use.
const Line = 64

// Map maps n bytes outside the Go heap, in huge pages where the kernel provides them, so
// that address translation adds little to the measurement.
func Map(n int64) (set []uint64, free func(), err error) {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	// Without CONFIG_TRANSPARENT_HUGEPAGE this fails; small pages are sufficient then.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), n/8), func() { _ = unix.Munmap(b) }, nil
}

// Link writes one cycle through all lines of the set: the first word of each holds the
// index of the next one's (Sattolo's algorithm).
func Link(set []uint64, seed uint64) {
	const per = Line / 8
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

// Walk follows the cycle and returns where it ends.
//
//go:noinline
func Walk(set []uint64, at uint64, loads int) uint64 {
	for range loads {
		at = set[at]
	}
	return at
}
