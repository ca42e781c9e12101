// Package duck queries a store by SQL, with DuckDB. It is the only package that links
// DuckDB, and the only one with cgo.
//
// A query runs in a separate process, which the program that links this package starts as
// a child of itself (Child is the other end). The child may read only the segments that
// it is given. Three fences enforce that, each of which would suffice:
//
//   - DuckDB: only one statement, which DuckDB itself types as SELECT (or EXPLAIN
//     of one), allowed_paths with external access off, no extensions, and the
//     configuration locked;
//   - resource limits: no file can grow by a byte (RLIMIT_FSIZE 0), memory,
//     processor time and descriptors are bounded, and DuckDB's own memory_limit
//     is below that;
//   - Landlock, where the kernel has it: no path but the segments, read only, and
//     no TCP. Answer.Fences lists the active fences.
//
// The parent enforces the deadline: it then kills the child in any state.
package duck
