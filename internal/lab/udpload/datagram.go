package udpload

import (
	"encoding/binary"
	"net/netip"
)

// Datagrams begin with a word that distinguishes them from foreign ones, their number in
// the flow, and their send time (CLOCK_MONOTONIC of the sender, ns).
const (
	magic     = 0x716c7564
	leastSize = 4 + 8 + 8
	// mostSize is the payload that fits into an Ethernet frame of 1500 bytes.
	mostSize = 1500 - 20 - 8
	// frame is the overhead on the link: Ethernet, IPv4 and UDP headers. Shapers count it
	// (skb->len); they do not count the frame's checksum.
	frame = 14 + 20 + 8
)

// putHeader writes the header of a datagram.
func putHeader(b []byte, number uint64, at int64) {
	binary.BigEndian.PutUint32(b, magic)
	binary.BigEndian.PutUint64(b[4:], number)
	binary.BigEndian.PutUint64(b[12:], uint64(at))
}

// read reads the header; false for a foreign datagram.
func read(b []byte) (number uint64, at int64, ok bool) {
	if len(b) < leastSize || binary.BigEndian.Uint32(b) != magic {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(b[4:]), int64(binary.BigEndian.Uint64(b[12:])), true
}

func bits(payload int) int64 { return int64(payload+frame) * 8 }

// flow is the state of the datagrams received from one sender's socket.
type flow struct {
	next  uint64 // one more than the largest number seen
	first uint64 // the number due when counting began
	came  uint64 // received since then
}

// tally counts received datagrams, by flow. For a flow that first appears while it
// counts, the first received datagram is the first that could be lost.
type tally struct {
	flows map[netip.AddrPort]*flow
	bits  int64
}

// add counts a datagram.
func (t *tally) add(from netip.AddrPort, number uint64, payload int) {
	f := t.flows[from]
	if f == nil {
		f = &flow{next: number, first: number}
		if t.flows == nil {
			t.flows = map[netip.AddrPort]*flow{}
		}
		t.flows[from] = f
	}
	f.next = max(f.next, number+1)
	f.came++
	t.bits += bits(payload)
}

// begin restarts the counts from now.
func (t *tally) begin() {
	t.bits = 0
	for _, f := range t.flows {
		f.first, f.came = f.next, 0
	}
}

// counts are the number of datagrams received since begin, and the number of those that
// are missing although later ones were received. A datagram that is reordered across an
// end of the counted time is missing at one end and surplus at the other.
func (t *tally) counts() (came, lost uint64) {
	for _, f := range t.flows {
		came += f.came
		if due := f.next - f.first; due > f.came {
			lost += due - f.came
		}
	}
	return came, lost
}
