// Package pipeline is quell's one detection loop: measurements of an interval in,
// findings, actions and incidents out, results of actions back in. It joins
// detect (outliers, anomalies, suspects), plan (incidents, caps) and spec (normal
// costs) and holds everything in which their order matters. The agent, the replay
// of recordings and the simulator are its hosts.
//
// A Pipeline is of one machine. It is single-threaded and has no clock, no
// randomness and no I/O: time is an argument, and the same calls give the same
// results, to the last bit.
//
// The contract, for each tick of a host:
//
//  1. Tick(now) ends caps whose lease is over and closes incidents that are calm.
//  2. For each signal with an interval that ended: Begin, an Add for each task in
//     any order, End. All tasks of a machine that were counted or used anything are
//     measured in one interval: a task that is left out is no suspect in it. Of
//     intervals that end together, those of signals per unit of work come first
//     (the order of sample.Signals), since a wait is judged by them too. End
//     judges, follows open incidents, and lets samples teach their specs.
//  3. Analyse(now) until it returns false: at most one analysis for each
//     detect.Params.Pace. Pass does 1 and 3 for a stretch of time without intervals.
//  4. After each of these calls, and after Gone, Cap, Uncap, SetMode and Stop:
//     Ready until it returns false. The host first carries out the Actions, in order,
//     and reports what became of each with Applied or Lifted before it calls Ready
//     again; then it writes down the Incidents, which are given once for all that
//     happened since, as they are after the actions. A host that cannot act (replay)
//     may drop Actions: until it is reported nothing counts as done. A host may let
//     several calls pass before it drains, if it can do without the state between.
//  5. Gone(now, task) when a task ends; Forget(task) once its last interval was given.
//
// What Ready and Open return are values: nothing that happens later changes them.
package pipeline
