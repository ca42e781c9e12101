// Package xen makes domains and reads the output of Xen's own tools: the trace that
// xentrace records, and the tables of xl. From the trace it computes the
// measures of the interference of domains by Mei et al. (Performance Measurements and
// Analysis of Network I/O Applications in Virtualized Cloud, section III).
//
// Readers take an io.Reader and run nothing. [Tools] runs the programs, in the first
// domain.
package xen
