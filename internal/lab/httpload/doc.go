// Package httpload sends requests to an HTTP server and measures the answers'
// latencies.
//
// [Run] with a rate is an open loop: requests begin at that rate, independent of the earlier
// ones. Its latencies count from the intended start of a request, so all requests of a
// second in which the server stalls measure the stall, and not only the few connections
// that were waiting (wrk2's author calls that error coordinated omission). It also
// checks itself: a generator that cannot keep its own schedule reports that.
//
// Without a rate it is a closed loop: each connection sends the next request when it has its
// answer. It measures the maximum rate; its latencies are not meaningful.
package httpload
