// Package segment writes and merges files of samples that are sorted by what
// they belong to.
//
// Most of what a sample says is the same in every sample of its task: that is
// its Series, and a file is a row of series with their samples in order of time.
// So the file is made by series, not by row: names go to the dictionaries once
// a series, columns are filled in stretches, and a merge of files compares names
// once a series and copies the rest. (Per row it was ten times as much work:
// docs/scale.md.)
//
// The files are plain Parquet with trace/parquet's columns, any reader reads
// them. What a merge relies on besides is that the pages of all columns of a row
// group begin at the same rows; files that say so in their metadata are merged
// here, others are the caller's to merge by rows.
package segment
