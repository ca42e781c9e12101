// Package uprobe counts in the kernel how often an instruction of a program is
// reached, by cgroup and process: a breakpoint and a small eBPF program behind it.
//
// One [Probe] serves every task that runs the same file. perf's own uprobe
// events in cgroup mode need no eBPF, but each of them, one per task and CPU,
// is a separate listener that every hit passes: 0.14 µs each where it was
// measured, so 10 tasks on 64 CPUs would cost 90 µs a hit, and closing them
// takes the kernel some 80 ms each. A Probe costs the same for any number of
// tasks and CPUs.
//
// Everything is held by descriptors: when the agent ends, for any reason, the
// kernel removes the breakpoint.
package uprobe
