// Package topology holds the tests of host.Topology on machines whose shape is
// known because QEMU was told it: sockets, dies, cores, threads and memory
// nodes. They are built with the tag "inguest" and run by `make test-guests`.
package topology
