// Package xen reads what Xen's own tools print: the trace that xentrace records,
// the tables of xentop and xl. From the trace it works out the measures by which
// Mei et al. (Performance Measurements and Analysis of Network I/O Applications
// in Virtualized Cloud, section III) tell how domains get on with each other.
package xen
