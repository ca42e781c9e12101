// Package blockio counts the I/O signal: how long a task's requests to block
// devices take, per request. A request's time begins when the kernel makes it
// and ends when the device has done it, so waiting in the I/O scheduler behind
// other tasks' requests is in it; what blk-throttle (io.max) held back before
// is not, since that is the task's own limit.
//
// Two eBPF programs on two tracepoints, attached while a window is open and at
// no other time. A request is its maker's; what the kernel writes back later is
// the writer's where v2 keeps account of that, else nobody's.
//
// docs/signals/io.md says what the signal sees, what it cannot, and its cost.
package blockio

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" blockio blockio.bpf.c
