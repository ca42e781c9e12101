// Package udpload sends datagrams and says how many of them arrive, and how long
// one takes there and back: what iperf3 -u and sockperf ping-pong do, as roles of
// a study.
//
// A [Sender] has flows that send as fast as their socket takes it, or at a
// constant rate; a [Receiver] counts what comes, and by the datagrams' numbers
// what does not. A [Pinger] sends small datagrams to an [Echo] at a constant rate
// whatever became of those before, so that a queue is seen by all that arrive
// while it is there; with no interval it waits for each answer, as a game of
// ping-pong does.
//
// Bits are counted as the kernel's shapers count them: whole Ethernet frames.
// Each part watches itself, and says so where it and not the network lost
// something.
package udpload
