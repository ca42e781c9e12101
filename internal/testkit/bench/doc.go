// Package bench has the test that measures what the shipped agent costs a machine (`make
// bench-agent`), compared with other agents and with the floor: a loop that reads the same
// files and counters and does nothing else. It works on real cgroups with one paused process
// each, in its own tree, which it removes when it ends, also when interrupted.
//
// A contender runs in its own cgroup. That cgroup's cpu.stat gives its usage in
// the window: all its threads and children, including those that have ended.
// What the kernel does for it in interrupts on other CPUs is not counted.
//
// Contenders that cost next to nothing (the agent, the floor, node_exporter)
// are measured two at a time; the others alone, in turns.
package bench
