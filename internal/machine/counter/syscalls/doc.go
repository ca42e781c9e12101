// Package syscalls counts signal cps for any number of tasks with one eBPF program where a system
// call is entered, which is attached in windows only. It takes no descriptor for a task. CPU time is
// the task's usage in the window, so nothing runs at a context switch, where perf's cgroup mode
// switches a group of events for each task.
//
// A task belongs to its cgroup in v2, or to that of the v1 cpu controller. Of nested tasks each has
// what runs in its own cgroups: the usage of those inside it is taken off.
package syscalls

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" syscalls syscalls.bpf.c
