// Package topology has the tests of host.Topology on machines whose shape is known from
// QEMU's configuration: sockets, dies, cores, threads and memory nodes. They are built
// with the tag "inguest" and run by `make test-guests`.
package topology
