// Package platform is the short form of the lab's studies, for the present machine: the
// number of cores behind its CPUs, the cost of a second thread on a core, the latency
// of memory, the cost of neighbours for each other, and the accuracy of all that. It
// makes the studies' files for a topology and reads their results; it runs nothing.
package platform
