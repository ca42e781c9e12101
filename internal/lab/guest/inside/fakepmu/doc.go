// Package fakepmu has the tests that run in an arm64 guest with the modelled PMU of
// internal/lab/guest/fakepmu, where the cost of a task depends on its neighbours: the
// counting of CPI, and the shipped agent's whole loop with it. Built with the tag
// "inguest", run by `make test-guests`.
package fakepmu
