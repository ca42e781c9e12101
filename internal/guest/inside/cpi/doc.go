// Package cpi holds the tests of counting cycles and instructions that run in
// an arm64 guest, where the PMU is QEMU's and what the right answer is is
// known: built with the tag "inguest", run by `make test-guests`.
package cpi
