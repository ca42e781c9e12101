// Package httpload sends requests to an HTTP server and measures the answers'
// latencies.
//
// [Open] is an open loop: requests begin at a constant rate, independent of the earlier
// ones. Its latencies count from the intended start of a request, so all requests of a
// second in which the server stalls measure the stall, and not only the few connections
// that were waiting (wrk2's author calls that error coordinated omission). It also
// checks itself: a generator that cannot keep its own schedule reports that.
//
// [Closed] is a closed loop: each connection sends the next request when it has its
// answer. It measures the maximum rate; its latencies are not meaningful.
package httpload
