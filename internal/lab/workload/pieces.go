package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/chase"
)

// prepare creates a thread's piece of work and its memory, which free releases.
func (b *kernelRun) prepare(k Kernel, thread uint64) (p piece, free func(), err error) {
	nothing := func() {}
	switch k.Name {
	case "cpu-burn":
		return func() float64 {
			//lint:ignore SA4017 the time it takes is what is wanted
			cpuBurn(k.Work)
			return float64(k.Work)
		}, nothing, nil
	case "primes":
		return func() float64 {
			for range k.Work {
				primes(mostPrime)
			}
			return float64(k.Work)
		}, nothing, nil
	case "triad":
		return triad(k)
	case "chase":
		set, free, err := chase.Map(k.Set)
		if err != nil {
			return nil, nothing, err
		}
		chase.Link(set, k.Seed+thread)
		at := uint64(0)
		return func() float64 {
			at = chase.Walk(set, at, k.Work)
			return float64(k.Work)
		}, free, nil
	case "syscall":
		zero, err := os.Open("/dev/zero")
		if err != nil {
			return nil, nothing, fmt.Errorf("run syscall: %w", err)
		}
		fd, block := zero.Fd(), new([512]byte)
		return func() float64 {
			for range k.Work / 2 {
				raw(unix.SYS_GETPPID, 0, 0, 0, 0)
				raw(unix.SYS_PREAD64, fd, uintptr(unsafe.Pointer(block)), uintptr(len(block)), 0)
			}
			if k.Work%2 == 1 {
				raw(unix.SYS_GETPPID, 0, 0, 0, 0)
			}
			return float64(k.Work)
		}, func() { zero.Close() }, nil
	case "read":
		return b.reads(k, thread)
	case "burst":
		r := rand.New(rand.NewPCG(k.Seed, thread))
		rested := true
		return func() float64 {
			// The pause is between bursts and does not count.
			if !rested {
				b.sleep(time.Duration((0.5 + r.Float64()) * float64(k.Pause)))
				rested = true
				return 0
			}
			rested = false
			//lint:ignore SA4017 the time it takes is what is wanted
			xorshift(seed, k.Work)
			return float64(k.Work)
		}, nothing, nil
	case "idle":
		return func() float64 { <-b.ctx.Done(); return 0 }, nothing, nil
	}
	return nil, nothing, fmt.Errorf("run workload %q: unknown workload", k.Name)
}

func (b *kernelRun) sleep(d time.Duration) {
	w := worker{ctx: b.ctx}
	w.sleep(d)
}

// cpuBurn is the loop of the cpu_burn tool (noisy neighbours on AWS, listing 5.1): x += i
// · 0.000001. There it is compiled without optimisation, so that every x goes through
// memory. Here each addition depends on the previous one in a register, which also uses
// only the floating-point unit.
//
//go:noinline
func cpuBurn(n int) float64 {
	x := 0.0
	for i := range n {
		x += float64(i) * 0.000001
	}
	return x
}

// mostPrime is sysbench's default of --cpu-max-prime.
const mostPrime = 10_000

// primes counts primes as one event of `sysbench cpu` does (sysbench 1.0,
// tests/cpu/sb_cpu.c): from 3 on, below most, by every divisor up to the root.
//
//go:noinline
func primes(most uint64) (n int) {
	for c := uint64(3); c < most; c++ {
		root := math.Sqrt(float64(c))
		l := uint64(2)
		for float64(l) <= root && c%l != 0 {
			l++
		}
		if float64(l) > root {
			n++
		}
	}
	return n
}

// triad is STREAM's a[i] = b[i] + s·c[i] over arrays that are larger than any cache.
// STREAM counts 24 bytes an element, independent of what the processor really transfers.
func triad(k Kernel) (piece, func(), error) {
	size := k.Set / 3
	if size == 0 {
		size = max(4*lastLevelCache(), 32<<20)
	}
	elements := int(size / 8)
	var arrays [3][]float64
	var frees []func()
	free := func() {
		for _, f := range frees {
			f()
		}
	}
	for i := range arrays {
		w, f, err := chase.Map(size / 8 * 8)
		if err != nil {
			return nil, free, err
		}
		frees = append(frees, f)
		arrays[i] = unsafe.Slice((*float64)(unsafe.Pointer(&w[0])), elements)
		for j := range arrays[i] { // allocate the pages before the first sweep
			arrays[i][j] = float64(i + 1)
		}
	}
	return func() float64 {
		for range k.Work {
			triadSweep(arrays[0], arrays[1], arrays[2], 3)
		}
		return float64(k.Work) * 24 * float64(elements)
	}, free, nil
}

//go:noinline
func triadSweep(a, b, c []float64, s float64) {
	b, c = b[:len(a)], c[:len(a)]
	for i := range a {
		a[i] = b[i] + s*c[i]
	}
}
