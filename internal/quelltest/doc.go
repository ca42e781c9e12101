// Package quelltest is the test kit: what every test of quell may lean on.
//
// A test that needs something of its machine says so with [Need], which skips
// it by the capability's name, so that a run can list what it did not test and
// why. In CI the capabilities in promises.txt are promised: there the same call
// fails instead of skipping. [Main] fails a package that leaks goroutines or
// file descriptors, and [Until] waits for a thing instead of for time.
//
// What tests of several packages set up is here as well: cgroups ([MakeCgroup]),
// processes that are spoken to ([StartChild]), networks ([NewNet]), an sshd
// ([NewSSHD]), quell's own programs ([Program]).
//
// The program in tally runs the tests and prints what was skipped.
package quelltest
