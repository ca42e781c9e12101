// Package replay runs the pipeline over recorded samples, as the
// agent would have on the machines that they are of, and counts what comes of
// it: outliers, anomalies, incidents, accusations and, where it is known what
// was true, how often they were right.
//
// What is recorded cannot answer: nobody is capped, and incidents say what would
// have been done. A Player takes samples in order of time for each machine; its
// memory grows with machines, tasks, incidents and findings that accuse, not with
// samples.
package replay
