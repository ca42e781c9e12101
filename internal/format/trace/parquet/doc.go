// Package parquet stores samples as Parquet: the same columns as trace's CSV,
// for large traces and for programs that read tables by column. It is separate
// from trace so that the agent, which links trace, does not link Parquet.
//
// Names are dictionaries, ts is a timestamp in deltas, what was not measured is
// null, and pages are compressed with zstd. Labels are in the file's metadata.
// docs/trace-format.md describes the format.
package parquet
