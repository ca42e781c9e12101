// Package analyse computes what a study's runs say, with intervals. It reads
// records and nothing else: no machine, no clock, no randomness but what a
// seed gives, so the same records give the same results anywhere.
//
// Where a paper defines a quantity, that definition is computed as it stands
// and is the one to compare with the paper; what is better understood since is
// beside it, under a name of its own.
package analyse
