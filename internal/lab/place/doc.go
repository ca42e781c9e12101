// Package place determines the CPUs of each part of a run: by the relation that the
// parts' CPUs must have on this machine, by lists, or by a mapping of virtual CPUs to
// cores. It uses a description of the topology and does not access the machine.
//
// The pinnings neutral, per-chip, per-core and per-thread are those of figure 1 of "CPU
// pinning and partial CPU loads" (Podzimek et al., CCGrid 2015), for any number of
// parts and any topology.
package place
