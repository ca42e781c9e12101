// Package sim simulates fleets of machines, with the real pipeline on each, to count how
// often its results are right: only a model knows for certain which task hurt which.
//
// A Scenario is a recipe, a case is one machine simulated from it with a seed. The same
// scenario, seed and rule give the same case, to the last bit, whatever runs in parallel: a
// machine has its own random source and shares nothing. docs/sim.md describes the
// contention model, which of the papers' numbers it reproduces, and which it does not.
package sim
