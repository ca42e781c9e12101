// Package host reads and writes one Linux machine below a root path: cgroups
// (v1, v2 and hybrid), /proc and /sys. With "/" that is the machine itself;
// with any other path it is a tree of text, which is how a test gets a host
// that it does not run on.
//
// Every path that goes in or comes out is inside the root and begins with "/";
// Host.Path gives the one that this process can open.
//
// A cgroup is named by the hierarchy it was looked up in and its path there,
// "/" being the top of what is mounted. Its processes may sit elsewhere in
// other hierarchies; Cgroup.Places says where.
//
// The package decides nothing and remembers nothing between calls but open
// files. It lists the writes that would limit a cgroup or place it on CPUs, in an
// order that the kernel accepts forwards and backwards; who makes them keeps the
// journal.
//
// Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/,
// scheduler/sched-bwc.rst, accounting/psi.rst and proc(5).
package host
