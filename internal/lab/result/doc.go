// Package result is what a study leaves on disk, in three artefacts: the
// record of each run, append-only and never changed afterwards; the results
// that analyses compute from records; and renderings of those. Analysing again
// never needs running again.
//
// A study's folder:
//
//	study.lock.json                the study file, its hash, and which quell
//	env/<host>.json                what the machine was like; env/<host>.<run>.diff.json where it changed
//	runs/<cell>/<n>.<try>/run.json the record, written last, atomically: a run without one did not happen
//	runs/<cell>/<n>.<try>/…        samples.jsonl (one Sample a line), out and err of each role
//	journal/                       changes to the machine that are in force (package enforce)
//	results/*.json                 what the analyses say
//	report.html, report.md, …      renderings
package result
