// Package bperf counts signal cpi for any number of tasks with one group of perf events on each
// CPU, as `perf stat --bpf-counters --for-each-cgroup` does. An eBPF program on sched_switch
// reads the counters where a thread of one cgroup follows one of another, and charges what was
// counted since the last time to the cgroup that ran. A switch reads counters and writes none,
// unlike perf's cgroup mode, which takes the events of one cgroup off the PMU and puts those of
// another on it.
//
// The groups are open as long as the source and count in windows only; the program is attached
// in windows only. A task belongs to its cgroup in v2, or to that of the v1 cpu controller.
// Of nested tasks each has what runs in its own cgroups: with perf's cgroup mode the outer one
// has that of the inner one too.
package bperf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" bperf bperf.bpf.c
