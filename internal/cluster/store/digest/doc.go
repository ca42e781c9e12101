// Package digest computes specs of a store's samples and reads no sample twice. The
// aggregate of a segment's samples per key (spec.Hour) is kept in a file next to the
// store: a digest. Segments never change, so a digest is valid as long as its segment
// exists and the set of incidents that exclude samples from it is the same. A computation
// reads the segments without a digest, and otherwise only digests: some hundred bytes per
// key and hour.
//
// Segments are sorted by job, platform, task, machine and signal. One pass over the
// relevant columns therefore needs memory for one key and looks names up once for each
// run of a task's samples. Digests are sorted by key, so a computation merges them with
// one key in memory at a time.
//
// A digest is derived data: it may be removed at any time, and is then computed again.
package digest
