// Package cpi has the tests of counting cycles and instructions that run in an arm64
// guest with QEMU's PMU, where the correct counts are known: built with the tag
// "inguest", run by `make test-guests`.
package cpi
