// Package blockio counts the I/O signal: how long a task's requests to block
// devices take, per request. A request's time begins when the kernel makes it
// and ends when the device has done it. It includes waits in the I/O scheduler
// behind other tasks' requests, but not what blk-throttle (io.max) held back
// before, since that is the task's own limit.
//
// Two eBPF programs on two tracepoints are attached only while a window is open.
// A request belongs to the task that made it. What the kernel writes back later
// belongs to the writer if v2 keeps account of that, else to no task.
//
// docs/signals/io.md says what the signal sees, what it cannot, and its cost.
package blockio

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" blockio blockio.bpf.c
