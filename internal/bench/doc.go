// Command bench measures what the shipped agent costs a machine, beside other
// agents and beside the floor: a loop that reads the same files and counters
// and does nothing else. It works on real cgroups with one paused process each,
// in a tree of its own that it removes when it ends, also when interrupted.
//
// A contender runs in a cgroup of its own, whose cpu.stat says what it used in
// the window: all its threads and children, those that ended too. What the
// kernel does for it in interrupts on other CPUs is nobody's there.
//
// Contenders that cost next to nothing (the agent, the floor, node_exporter) are
// measured two at a time; the others alone, in turns.
package main
