package env

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// gather moves the memory that a process has to the memory nodes of its CPUs. A guest boots before it
// is placed, and a page is on the node of the CPU that touched it first: without this a part of its
// memory, another in each run, is on another socket. What it touches later is near it anyway. Where
// the kernel refuses, e.g. because these nodes have no memory, all stays where it is.
func gather(pid int, top host.Topology, cpus sample.Set) {
	all, near := nodesOf(top, cpus)
	if near == 0 || near == all {
		return
	}
	const bits = 64 + 1 // the kernel reads one less than it is told
	_, _, _ = unix.Syscall6(unix.SYS_MIGRATE_PAGES, uintptr(pid), bits, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&near)), 0, 0)
}

// nodesOf returns the memory nodes as bits, all and those of some CPUs; none if they need more than 64.
func nodesOf(top host.Topology, cpus sample.Set) (all, near uint64) {
	for _, n := range top.Memory {
		if n.ID >= 64 {
			return 0, 0
		}
		all |= 1 << n.ID
		if n.CPUs.Intersects(cpus) {
			near |= 1 << n.ID
		}
	}
	return all, near
}
