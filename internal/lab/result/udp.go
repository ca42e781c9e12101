package result

// Values of parts that send and receive datagrams (Part.Values), over their counted time.
// Bits are those of whole Ethernet frames, as the kernel's shapers count them. Times are
// in seconds, for the round trip. Package udpload reports them, package analyse reads
// them.
const (
	UDPSent     = "udp.sent"     // bits/s, of a sender
	UDPReceived = "udp.received" // bits/s, of a receiver
	// UDPLost is the share of the sent datagrams that never arrived, by their numbers.
	// UDPOverflow is how many of them were lost in the receiver's own socket because it
	// did not read in time.
	UDPLost     = "udp.lost"
	UDPOverflow = "udp.overflow"

	PingCount = "ping.count"
	PingLost  = "ping.lost" // share without an answer in time
	PingMean  = "ping.mean"
	PingP50   = "ping.p50"
	PingP90   = "ping.p90"
	PingP99   = "ping.p99"
	PingMax   = "ping.max"
)
