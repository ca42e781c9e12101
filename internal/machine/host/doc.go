// Package host reads and writes one Linux machine below a root path: cgroups
// (v1, v2 and hybrid), /proc and /sys. With "/" that is the machine itself;
// with any other path it is a tree of text, which is how a test gets a host
// that it does not run on.
//
// Every path in an argument or a result is inside the root and begins with "/";
// Host.Path returns the path that this process can open.
//
// A cgroup is named by the hierarchy it was looked up in and its path there,
// "/" being the top of what is mounted. Its processes may sit elsewhere in
// other hierarchies; Cgroup.Places says where.
//
// The package makes no decisions and keeps nothing between calls except open files. It
// returns the writes that would limit a cgroup, in an order that the kernel accepts
// forwards and backwards. The caller makes them and keeps the journal.
//
// Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/,
// scheduler/sched-bwc.rst, accounting/psi.rst and proc(5).
package host
