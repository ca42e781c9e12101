// Package detect finds tasks that suffer from their neighbours and says which
// neighbour: outliers, anomalies and antagonists as in CPI² (EuroSys'13,
// section 4), for any cost signal.
//
// The contract, in order, once per sampling interval and signal:
//
//	d.Observe(signal, at, readings)   // one reading per task, one instant
//	for { f, ok := d.Next(now) … }    // at most one analysis a second
//
// Observe processes an interval and marks outliers; a task with enough of them is queued.
// Next analyses one queued task and returns a Finding. The order of the readings of one
// instant does not matter. A Detector has no clock, makes no decision and is used from one
// goroutine.
package detect
