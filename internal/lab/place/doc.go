// Package place says which CPUs each part of a run gets: by the relation that
// the parts' CPUs shall have on this machine, by lists, or by a mapping of
// virtual CPUs to cores. It knows a machine's topology and touches no machine.
//
// The pinnings neutral, per-chip, per-core and per-thread are those of figure 1
// of "CPU pinning and partial CPU loads" (Podzimek et al., CCGrid 2015), for
// any number of parts and any topology.
package place
