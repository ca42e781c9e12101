// Package digest makes specs of a store's samples without reading any sample
// twice. What the samples of a segment come to, per key (spec.Hour), is kept in a
// file beside the store: a digest. Segments never change, so a digest holds for as
// long as its segment lives, and as long as no incident is told of that took
// samples out of it. A computation reads the segments that have no digest yet,
// and then digests only: some hundred bytes for each key and hour.
//
// Segments are sorted by job, platform, task, machine and signal, so one pass
// over the columns that matter needs memory for one key, and looks names up once
// for each stretch of a task's samples. Digests are sorted by key, so a
// computation merges them with one key in memory at a time.
//
// A digest is derived: it may be removed at any time, and is made again.
package digest
