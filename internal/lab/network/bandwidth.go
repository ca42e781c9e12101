package network

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"

	"github.com/quell-dev/quell/internal/lab/study"
)

// LimitRate limits what the environment itself sends, by a class of htb whose rate is the
// baseline, whose ceiling is the burst and whose bucket is the credit, full at first.
//
// It does not use tbf, the more obvious choice: a bucket that is given in time holds
// 4.3 s of the rate at most (sch_tbf.c keeps that in 32 bits of nanoseconds), and the
// netlink library does not send the attribute that gives it in bytes.
func (p *Port) LimitRate(b study.Bandwidth) error {
	l, err := p.space.link.LinkByName(port)
	if err != nil {
		return fmt.Errorf("limit bandwidth: %w", err)
	}
	most := max(b.Baseline, b.Burst)
	// The amount that a late timer may make up for, as at an uplink; the kernel's
	// default would be one packet.
	late := max(float64(most)/8*0.002, 64<<10)
	credit := max(float64(b.Credit), late)
	index, root := l.Attrs().Index, netlink.MakeHandle(1, 0)
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root, Parent: netlink.HANDLE_ROOT})
	htb.Defcls = 1
	if err := p.space.link.QdiscAdd(htb); err != nil {
		return fmt.Errorf("limit bandwidth: htb: %w", lacking(err))
	}
	class := &netlink.HtbClass{ClassAttrs: netlink.ClassAttrs{LinkIndex: index, Parent: root, Handle: netlink.MakeHandle(1, 1)},
		Rate: uint64(b.Baseline / 8), Ceil: uint64(most / 8), Buffer: ticks(credit, float64(b.Baseline)/8), Cbuffer: ticks(late, float64(most)/8),
		Quantum: 16 << 10} // of no use to a single class, but without it the kernel logs a warning
	if err := p.space.link.ClassAdd(class); err != nil {
		return fmt.Errorf("limit bandwidth: htb: %w", lacking(err))
	}
	return nil
}

// ticks is the time that bytes take at a rate (bytes/s), in the scheduler's ticks
// (netlink.TickInUsec is from /proc/net/psched).
func ticks(bytes, rate float64) uint32 {
	return uint32(math.Min(bytes/rate*1e6*netlink.TickInUsec(), math.MaxUint32))
}
