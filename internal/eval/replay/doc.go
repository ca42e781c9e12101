// Package replay runs the pipeline over recorded samples, like the agent on the machines
// that they are from, and counts the results: outliers, anomalies, incidents, accusations
// and, if the truth is known, how often accusations were right.
//
// A recording cannot respond to actions: no task is capped, and incidents say what would
// have been done. A Replayer takes samples in order of time for each machine; its memory
// grows with machines, tasks, incidents and findings that accuse, not with samples.
package replay
