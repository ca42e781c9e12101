package runq

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// record is what a task did on one CPU, or on all: times in ns.
type record struct {
	run, other, self, throttled uint64
	niced                       uint64 // part of other
	wakeups                     uint64
	waits, dropped              uint32
	cpu                         uint32
}

// decode reads one of the kernel's records (struct record of runq.bpf.c). The run clock is one
// word: if it is negative the clock runs and the word is reading − now.
func decode(w []byte, now uint64) record {
	le := binary.LittleEndian // the object is built for little-endian machines
	run := le.Uint64(w)
	if int64(run) < 0 {
		run += now
	}
	return record{
		run: run, other: le.Uint64(w[8:]), self: le.Uint64(w[16:]), throttled: le.Uint64(w[24:]),
		niced: le.Uint64(w[32:]), wakeups: le.Uint64(w[40:]), waits: le.Uint32(w[48:]), dropped: le.Uint32(w[52:]),
	}
}

// since sums the differences from an earlier reading over all CPUs. A CPU that had no record then
// has counted from zero.
func since(cur, prev []record) (sum record) {
	for _, c := range cur {
		var p record
		for len(prev) > 0 && prev[0].cpu <= c.cpu {
			if prev[0].cpu == c.cpu {
				p = prev[0]
			}
			prev = prev[1:]
		}
		// The run clock is read while it is written and may seem to step back.
		if c.run > p.run {
			sum.run += c.run - p.run
		}
		sum.other += c.other - p.other
		sum.self += c.self - p.self
		sum.throttled += c.throttled - p.throttled
		sum.niced += c.niced - p.niced
		sum.wakeups += c.wakeups - p.wakeups
		sum.waits += c.waits - p.waits
		sum.dropped += c.dropped - p.dropped
	}
	return sum
}

// leastCPU bounds the cost of a task that waited and hardly ran: less CPU time than
// this counts as this.
const leastCPU = time.Millisecond

// reading returns the reading of what a task did in a window. Without its CPU time, or
// if it neither ran nor waited, there is no cost.
func (r record) reading(cpu time.Duration, known bool) counter.Reading {
	out := counter.Reading{Cost: math.NaN(), Coverage: 1}
	if known && cpu+time.Duration(r.other+r.self) > 0 {
		per := max(cpu, leastCPU).Seconds()
		out.Cost = seconds(r.other) / per
	}
	if r.waits > 0 {
		out.Coverage = 1 - min(1, float64(r.dropped)/float64(r.waits))
	}
	out.Extras.Set(sample.WaitOther, seconds(r.other))
	out.Extras.Set(sample.WaitNiced, seconds(r.niced))
	out.Extras.Set(sample.WaitSelf, seconds(r.self))
	out.Extras.Set(sample.WaitThrottled, seconds(r.throttled))
	out.Extras.Set(sample.Wakeups, float64(r.wakeups))
	return out
}

func seconds(ns uint64) float64 { return float64(ns) / 1e9 }
