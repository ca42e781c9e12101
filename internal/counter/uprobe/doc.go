// Package uprobe counts in the kernel how often an instruction of a program is
// reached, and by whom: a breakpoint and a small eBPF program behind it.
//
// One [Probe] serves every task that runs the same file. perf's own uprobe
// events in cgroup mode need no eBPF, but each of them, one per task and CPU,
// is a listener of its own that every hit walks past: 0.14 µs each where it
// was measured, so 10 tasks on 64 CPUs would cost 90 µs a hit, and closing
// them takes the kernel some 80 ms each. A Probe costs the same for any number
// of tasks and CPUs.
//
// Everything is held by descriptors: when the agent dies, however it dies, the
// kernel takes the breakpoint out.
package uprobe
