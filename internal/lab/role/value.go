package role

// Values that tools report (Part.Values), over their counted time. Times are in seconds.
const (
	// Of a client of web servers; latencies are from the intended start of each request.
	HTTPOffered   = "http.offered" // requests/s; 0: a closed loop
	HTTPRate      = "http.rate"    // good answers/s
	HTTPBytes     = "http.bytes"   // of their bodies, /s
	HTTPLatency   = "http.latency" // mean
	HTTPP50       = "http.latency_p50"
	HTTPP95       = "http.latency_p95"
	HTTPP99       = "http.latency_p99"
	HTTPService99 = "http.service_p99" // from the sending
	HTTPErrors    = "http.errors"
	HTTPDropped   = "http.dropped"

	// Of a sender of datagrams, bits/s of whole Ethernet frames, as the kernel's shapers
	// count them; UDPLost is the share that never arrived.
	UDPSent     = "udp.sent"
	UDPReceived = "udp.received"
	UDPLost     = "udp.lost"

	// Of a sender of pings: round trips, and the share without an answer.
	PingCount = "ping.count"
	PingLost  = "ping.lost"
	PingMean  = "ping.mean"
	PingP50   = "ping.p50"
	PingP90   = "ping.p90"
	PingP99   = "ping.p99"
	PingMax   = "ping.max"
)
