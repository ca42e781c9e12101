// Package network makes the networks of a study out of network namespaces:
// each network is a bridge in a namespace of its own, each environment on it
// gets a namespace with one interface, and a network may have an uplink to
// another, one link whose rate is bounded, as a machine's network card is.
//
//	load ── lan ══ uplink, 100 Mbit/s ══ host ┬─ vm1
//	                                          └─ vm2
//
// Namespaces have no names: they are there as long as this process holds them
// open or something runs in them, so a lab that is killed leaves none behind.
// A command gets into one by [Enter], before it is run.
package network
