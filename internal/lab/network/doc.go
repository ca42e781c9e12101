// Package network makes the networks of a study from network namespaces: each network
// is a bridge in a namespace of its own, each environment on it gets a namespace with
// one interface. A network may have an uplink to another, one link with a limited rate,
// like a machine's network card.
//
//	load ── lan ══ uplink, 100 Mbit/s ══ host ┬─ vm1
//	                                          └─ vm2
//
// Namespaces have no names: they exist as long as this process holds them open or a
// process runs in them, so a lab that is killed leaves none behind. A command enters
// one by [Enter], before it is executed; a container runs in one; a guest's network card
// is a tap device in one, which QEMU gets as a file.
package network
