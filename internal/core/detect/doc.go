// Package detect finds tasks that suffer from their neighbours and says which
// neighbour: outliers, anomalies and antagonists as in CPI² (EuroSys'13,
// section 4), for any cost signal.
//
// The contract, in order, once per sampling interval and signal:
//
//	d.Observe(signal, at, readings)   // one reading per task, one instant
//	for { f, ok := d.Next(now) … }    // at most one analysis a second
//
// With every switch off (rule cpi2) it is the paper's method. What is added then, because the
// loop could not run or would do harm without it: costs that are negative or not finite are
// dropped; a task that quell limits, that is split over cgroups, or that has no ready spec is no
// victim, and a restart forgets a task's outliers; a task is no suspect if it contains the victim
// or is part of it; ties are broken by usage and name. docs/rules.md lists what the planner and
// the specs add.
//
// Observe processes an interval and marks outliers; a task with enough of them is queued.
// Next analyses one queued task and returns a Finding. The order of the readings of one
// instant does not matter. A Detector has no clock, makes no decision and is used from one
// goroutine.
package detect
