// Package segment writes and merges files of samples that are sorted by series.
//
// Most fields of a sample are the same in all samples of its task: these are its Series.
// A file is a sequence of series with their samples in time order. Files are therefore
// written by series, not by row: names enter the dictionaries once per series, columns
// are filled in runs, and a merge of files compares names once per series and copies the
// rest. (Per row it was ten times as much work: docs/scale.md.)
//
// The files are plain Parquet with the columns of trace/parquet, and any reader reads
// them. Reader reads them by column, in blocks, for a merge and for the digests of specs.
// The pages of all columns of a row group begin at the same rows, so that a block is a
// page; a Reader needs no such file. A file declares it in its metadata, which also says
// that a Writer wrote it. Such files are merged here; the caller must merge others by rows.
package segment
