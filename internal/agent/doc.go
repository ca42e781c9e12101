// Package agent is the per-machine loop: sample, detect, identify, act. It
// works without any server.
//
// Everything happens in one goroutine, once per tick, in this order:
//
//  1. new tasks are monitored; ended tasks are read once more and dropped (discovery);
//  2. caps whose lease has expired, or whose limit another process changed, end (actor), and
//     operators' decisions are followed (operator);
//  3. if the sampling window is over, it is closed: readings are judged,
//     open incidents continue, specs learn, the trace is written (sampler);
//  4. at most one anomaly a second is analysed, and acted upon (actor);
//  5. if it is time, a window is opened (sampler, scheduler, placement).
//
// Requests from the socket and from /metrics run in the same goroutine,
// between ticks.
//
// Each part has its own state. A file refers only to itself and to files above it in the
// order that archtest checks (order_test.go), so no part reaches the state of one that uses it.
package agent
