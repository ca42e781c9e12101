// Package analyse computes a study's results from its runs, with confidence intervals.
// It reads records only: no machine, no clock, no randomness except from a seed, so the
// same records give the same results anywhere.
//
// Where a paper defines a quantity, the package computes that definition unchanged, for
// comparison with the paper. Later and better definitions are computed in addition,
// under names of their own.
package analyse
