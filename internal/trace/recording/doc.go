// Package recording reads samples out of whatever recorded them: quell's own
// traces, CSV and Parquet, and what others record (docs/replay.md has the list).
// What a file is shows from its content, never from its name.
//
// Counters that only grow become samples as in the agent: by the difference of
// two readings of one task, over the time between them. A counter that went
// back belongs to another life of its task.
package recording
