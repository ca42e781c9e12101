// Package sample holds quell's words: who a task is, what one measurement of
// it says, and how two readings of a kernel counter become a difference.
//
// It is the bottom of the core. It imports nothing but the standard library,
// reads no clock and touches no operating system; every other package speaks
// in these types. The words are those of CPI² (EuroSys'13, section 3) and of
// docs/ARCHITECTURE.md.
package sample
