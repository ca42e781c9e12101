// Package pipeline is quell's only detection loop: measurements of an interval go in,
// findings, actions and incidents come out, results of actions go back in. It joins
// detect (outliers, anomalies, suspects), plan (incidents, caps) and spec (normal costs)
// and contains everything that depends on their order. Its hosts are the agent, the
// replay of recordings and the simulator.
//
// A Pipeline is for one machine. It is single-threaded and has no clock, no randomness
// and no I/O: time is an argument, and the same calls give the same results, to the last
// bit.
//
// The contract, for each tick of a host:
//
//  1. Tick(now) ends caps whose lease has expired and closes incidents that are calm.
//  2. For each signal with an interval that ended: Begin, an Add for each task in
//     any order, End. All tasks of a machine that were counted or used anything are
//     measured in one interval: a task that is left out is no suspect in it. Of
//     intervals that end together, those of signals per unit of work come first
//     (the order of sample.Signals), since they are also used to judge a wait. End
//     judges, updates open incidents, and lets samples teach their specs.
//  3. Analyse(now) until it returns false: at most one analysis for each
//     detect.Params.Pace. Advance does 1 and 3 for a period without intervals.
//  4. After each of these calls, and after Gone, Cap, Uncap, SetMode and Stop:
//     Ready until it returns false. The host first carries out the Actions, in order,
//     and reports the result of each with Applied or Lifted before it calls Ready
//     again. Then it records the Incidents, which are returned once for everything
//     that happened since, in their state after the actions. A host that cannot act
//     (replay) may drop Actions: an action that is not reported does not count as
//     done. A host that needs no state in between may call Ready after several calls.
//  5. Compare once for each task and period, by a host that opens windows at random
//     moments; Evaders lists what was found.
//  6. Gone(now, task) when a task ends; Forget(task) after its last interval was given.
//
// The results of Ready and Open are values: later calls do not change them.
package pipeline
