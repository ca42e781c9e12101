// Package result is the data that a study leaves on disk, in three kinds: the record of
// each run, append-only and never changed afterwards; the results that analyses compute
// from records; and renderings of the results. A new analysis never needs new runs.
//
// A study's folder:
//
//	study.lock.json                the study file, its hash, and the version of quell
//	env/<hash>.json                the machine's description; after a change it is another file
//	runs/<cell>/<n>.<try>/run.json the record, written last, atomically: a run without one does not count
//	runs/<cell>/<n>.<try>/…        samples.jsonl (one Sample a line), out and err of each role
//	results/*.json                 the results of the analyses
//	report/                        renderings: report.html, report.md, …
package result
