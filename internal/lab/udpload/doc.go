// Package udpload sends datagrams and measures how many arrive, and the round-trip time
// of single ones: the functions of iperf3 -u and sockperf ping-pong, as roles of a study.
//
// A [Sender] has flows that send as fast as their socket accepts, or at a constant rate.
// A [Receiver] counts the datagrams that arrive and, from their numbers, those that do
// not. A [Pinger] sends small datagrams to an [Echo] at a constant rate, independent of
// earlier answers, so that a queue delays all datagrams that arrive while it exists. With
// no interval it waits for each answer, as in a game of ping-pong.
//
// Bits are counted as the kernel's shapers count them: whole Ethernet frames. Each part
// observes itself and reports if the part, and not the network, lost something.
package udpload
