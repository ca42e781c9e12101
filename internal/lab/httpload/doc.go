// Package httpload asks an HTTP server for something again and again and says
// how long that took.
//
// [Open] is an open loop: requests begin at a constant rate, whatever became of
// those before. Its latencies count from when a request was to begin, so a
// server that stalls for a second is seen by all requests of that second, not by
// the few connections that happened to wait (the error that wrk2's author calls
// coordinated omission). It watches itself: a generator that cannot keep its own
// times says so, instead of blaming the server.
//
// [Closed] is a closed loop: each connection asks again when it has its answer.
// It finds out how much a server can do ([Maximum]); its latencies say little.
package httpload
