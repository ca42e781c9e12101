// Package v2 has the tests for machines with cgroup v2 only: limits, placements,
// pressure, delegation, and the agent's findings, on a kernel without v1 hierarchies.
// They are built with the tag "inguest" and run in guests by `make test-guests`.
package v2
