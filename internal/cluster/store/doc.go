// Package store keeps samples and records as Parquet segments in a folder. Any tool that
// reads Parquet can query them.
//
// A segment is an immutable file below TABLE/day=D/[hour=H/]. It is part of the store
// once a commit names it. A commit is one file in log/, made by atomicfile. Its rename is
// the moment at which its additions are present, its removals are gone, and its batches
// are recorded as accepted, all at once. After a crash at any point a batch is therefore
// in the store once or not at all, and a redelivered batch is dropped by its number. That
// gives exactly-once storage if the sender repeats what was not acknowledged and the
// receiver acknowledges after Flush.
//
// Readers take a Snapshot: the segments that are live at one commit. They stay on disk
// until it is released. One process writes to a folder; a lock enforces that.
//
// Within a segment samples are sorted by job, platform, task, machine, signal and time.
// The data from which a spec is learnt is contiguous, and each task's times and numbers
// follow each other, which makes them compress well.
package store
