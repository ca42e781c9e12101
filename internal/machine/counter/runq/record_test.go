package runq

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestDecode(t *testing.T) {
	clock := func(v int64, rest ...uint64) (b []byte) {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
		for i := range 7 {
			var w uint64
			if i < len(rest) {
				w = rest[i]
			}
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	b := slices.Concat(
		clock(0), clock(50), // stopped
		clock(50-900),                           // runs since 900, at 50 then
		clock(7, 1, 2, 3, 4, 5, 6|8<<32, 1<<40), // marked is not decoded
	)
	want := []record{{}, {run: 50}, {run: 150}, {7, 1, 2, 3, 4, 5, 6, 8, 0}}
	for i, want := range want {
		if got := decode(b[i*recordSize:], 1000); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestSince(t *testing.T) {
	prev := []record{{run: 10, other: 1, self: 2, throttled: 3, niced: 1, wakeups: 4, waits: 1<<32 - 2, dropped: 6}, {cpu: 1, run: 20},
		{cpu: 3, run: 9}}
	cur := []record{{run: 10, other: 2, self: 4, throttled: 6, niced: 2, wakeups: 8, waits: 3, dropped: 12}, {cpu: 1, run: 25, other: 7},
		{cpu: 2, run: 1},                     // it had no record before
		{cpu: 3, run: 8}, {cpu: 200, run: 0}} // a clock that seems to step back did not run
	sum := since(cur, prev)
	if want := (record{6, 8, 2, 3, 1, 4, 5, 6, 0}); sum != want {
		t.Errorf("sum %v, want %v", sum, want)
	}
}

func TestReading(t *testing.T) {
	nan := math.NaN()
	const s, ms = uint64(time.Second), uint64(time.Millisecond)
	for _, tt := range []struct {
		name           string
		sum            record
		cpu            time.Duration
		unknown        bool
		cost, coverage float64
	}{
		{name: "half and half", sum: record{other: s, self: s / 2, wakeups: 40, waits: 80}, cpu: time.Second,
			cost: 1, coverage: 1},
		{name: "never waits", cpu: time.Second, coverage: 1},
		{name: "asleep", cost: nan, coverage: 1},
		{name: "only held back", sum: record{throttled: s}, cost: nan, coverage: 1},
		{name: "starved", sum: record{other: 2 * s, waits: 1}, cost: 2000, coverage: 1},
		{name: "hardly runs", sum: record{other: ms}, cpu: time.Microsecond, cost: 1, coverage: 1},
		{name: "usage unknown", sum: record{other: s, waits: 1}, unknown: true, cost: nan, coverage: 1},
		{name: "dropped", sum: record{waits: 4, dropped: 1}, cpu: time.Second, coverage: 0.75},
		{name: "more dropped than begun", sum: record{waits: 1, dropped: 2}, cpu: time.Second, coverage: 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.sum.reading(tt.cpu, !tt.unknown)
			for _, x := range []struct {
				what      string
				got, want float64
			}{{"cost", r.Cost, tt.cost}, {"coverage", r.Coverage, tt.coverage}} {
				if x.got != x.want && !(math.IsNaN(x.got) && math.IsNaN(x.want)) {
					t.Errorf("%s %v, want %v", x.what, x.got, x.want)
				}
			}
			for e, ns := range map[sample.Extra]uint64{sample.WaitOther: tt.sum.other, sample.WaitNiced: tt.sum.niced, sample.WaitSelf: tt.sum.self,
				sample.WaitThrottled: tt.sum.throttled, sample.Wakeups: tt.sum.wakeups * 1e9} {
				if v, ok := r.Extras.Get(e); !ok || v != float64(ns)/1e9 {
					t.Errorf("%v is %v, %v", e, v, ok)
				}
			}
		})
	}
}
