// Package sample defines quell's basic types: the identity of a task, one measurement of
// it, and the difference between two readings of a kernel counter.
//
// It is the lowest layer of the core. It imports only the standard library, reads no
// clock and calls no operating system. All other packages use its types. The terms are
// those of CPI² (EuroSys'13, section 3) and of docs/ARCHITECTURE.md.
package sample
