// Package xen makes domains and reads what Xen's own tools say of them: the
// trace that xentrace records, the tables of xentop and xl. From the trace it
// works out the measures by which Mei et al. (Performance Measurements and
// Analysis of Network I/O Applications in Virtualized Cloud, section III) tell
// how domains get on with each other.
//
// Readers take an io.Reader and run nothing. [Tools] runs the programs, in the
// first domain.
package xen
