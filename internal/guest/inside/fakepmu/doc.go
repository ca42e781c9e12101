// Package fakepmu holds the tests that run in an arm64 guest with the modelled
// PMU of internal/guest/fakepmu, where what a task costs answers to what runs
// beside it: the counting of CPI, and the shipped agent's whole loop by it.
// Built with the tag "inguest", run by `make test-guests`.
package fakepmu
