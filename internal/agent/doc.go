// Package agent is the per-machine loop: sample, detect, identify, act. It
// works without any server.
//
// Everything happens in one goroutine, once a tick, in this order:
//
//  1. tasks that came are followed, tasks that went are read once more and
//     let go;
//  2. caps whose lease is over, or that somebody else changed, are ended;
//  3. if the sampling window is over, it is closed: readings are judged,
//     open incidents are followed, specs learn, the trace is written;
//  4. at most one anomaly a second is analysed, and acted upon;
//  5. if it is time, a window is opened.
//
// Requests from the socket and from /metrics run in the same goroutine,
// between ticks.
package agent
