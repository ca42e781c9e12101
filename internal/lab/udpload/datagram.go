package udpload

import (
	"encoding/binary"
	"net/netip"
)

// Datagrams begin with a word by which strangers' are told, their number in the
// flow, and when they were sent (CLOCK_MONOTONIC of the sender, ns).
const (
	word      = 0x716c7564
	leastSize = 4 + 8 + 8
	// mostSize is what an Ethernet frame of 1500 bytes has room for.
	mostSize = 1500 - 20 - 8
	// frame is what goes on the link beside the payload: Ethernet, IPv4 and UDP
	// headers. Shapers count it (skb->len), the frame's check sum they do not.
	frame = 14 + 20 + 8
)

// mark writes the beginning of a datagram.
func mark(b []byte, number uint64, at int64) {
	binary.BigEndian.PutUint32(b, word)
	binary.BigEndian.PutUint64(b[4:], number)
	binary.BigEndian.PutUint64(b[12:], uint64(at))
}

// read reads it; false for what is none of ours.
func read(b []byte) (number uint64, at int64, ok bool) {
	if len(b) < leastSize || binary.BigEndian.Uint32(b) != word {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(b[4:]), int64(binary.BigEndian.Uint64(b[12:])), true
}

func bits(payload int) int64 { return int64(payload+frame) * 8 }

// flow is what has come of one sender's socket.
type flow struct {
	next  uint64 // one more than the largest number seen
	first uint64 // the number that was due when counting began
	came  uint64 // since then
}

// tally counts what comes, by flow. Of a flow that is met while it counts the
// first datagram is the first that is missed if it does not come.
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

// begin counts from now on only.
func (t *tally) begin() {
	t.bits = 0
	for _, f := range t.flows {
		f.first, f.came = f.next, 0
	}
}

// counts are how many datagrams have come since begin, and how many have not
// though later ones have. What is overtaken across an end of the counted time is
// missed at one and too many at the other.
func (t *tally) counts() (came, lost uint64) {
	for _, f := range t.flows {
		came += f.came
		if due := f.next - f.first; due > f.came {
			lost += due - f.came
		}
	}
	return came, lost
}
