// Package store keeps samples and records as Parquet segments in a folder, so
// that any tool that reads Parquet can ask them.
//
// A segment is an immutable file below TABLE/day=D/[hour=H/]. It counts once a
// commit names it. A commit is one file in log/, made by atomicfile: its rename
// is the moment at which what it adds is there, what it removes is gone, and the
// batches in it are known as taken, all at once. So after a crash at any point a
// batch is in the store once or not at all, and one that is delivered again is
// dropped by its number: exactly once, if the sender repeats what was not
// acknowledged and the receiver acknowledges after Flush.
//
// Readers take a Snapshot: the segments that live at one commit, which stay on
// disk until it is released. One process writes to a folder; a lock sees to it.
//
// Within a segment samples are sorted by job, platform, task, machine, signal
// and time: what a spec is learnt from lies together, and each task's times
// and numbers follow each other, which is what compresses.
package store
