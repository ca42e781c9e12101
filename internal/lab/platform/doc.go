// Package platform is the short form of the lab's studies, on the machine in
// hand: how many cores there are behind its CPUs, what a second thread on one
// costs, how far away memory is, who suffers beside whom, and how exactly any of
// that can be known. It makes the studies' files to fit a topology and reads
// their results; it runs nothing.
package platform
