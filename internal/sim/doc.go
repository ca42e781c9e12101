// Package sim plays fleets of machines that never existed, with the real
// pipeline on each, so that it can be counted how often they are right:
// only a model knows for certain who hurt whom.
//
// A Scenario is a recipe, a case is one machine played by it with a seed. The
// same scenario, seed and rule give the same case, to the last bit, whatever
// else is played beside it: a machine has its own source of randomness and
// shares nothing. docs/sim.md describes the contention model, which of the
// papers' numbers it reproduces, and which it does not.
package sim
