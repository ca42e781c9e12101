// Package trace stores samples as CSV: what an agent recorded, a simulation
// made or a person wrote by hand, all in the same columns, so that each can be
// replayed by the same code. docs/trace-format.md describes the format.
//
// A row is one line: the kernel allows no line feed in a cgroup's name (cgroup_mkdir,
// since Linux 3.17), and a torn or malformed line never affects its neighbours.
package trace
