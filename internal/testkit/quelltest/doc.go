// Package quelltest is the test kit for all tests of quell.
//
// A test that needs something of its machine declares it with [Need], which
// skips it by the capability's name, so that a run can list what it did not test
// and why. In CI the capabilities in promises.txt are promised: there the same
// call fails instead of skipping. [Main] fails a package that leaks goroutines
// or file descriptors. [Until] waits for a condition instead of for a time.
//
// Fixtures for tests of several packages are here as well: cgroups
// ([MakeCgroup]), child processes ([StartChild]), networks ([NewNet]), an sshd
// ([NewSSHD]), quell's own programs ([Program]).
//
// The program in tally runs the tests and prints what was skipped.
package quelltest
