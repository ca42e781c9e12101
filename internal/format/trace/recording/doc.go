// Package recording reads samples from any recording: quell's own traces, CSV
// and Parquet, and those of other programs (docs/replay.md has the list). The
// format of a file is found from its content, never from its name.
//
// Counters that only grow become samples as in the agent: by the difference of
// two readings of one task, over the time between them. A counter that went
// back belongs to another life of its task.
package recording
