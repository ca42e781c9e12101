package runq

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// FuzzDecode checks that a reading has numbers or nothing, whatever the kernel's memory holds.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, uint64(0), int64(time.Second))
	f.Add(make([]byte, 3*recordSize), uint64(1), int64(0))
	running := make([]byte, 2*recordSize)
	binary.LittleEndian.PutUint64(running, 1<<63|12345)
	f.Add(running, uint64(1<<62), int64(-1))
	f.Fuzz(func(t *testing.T, b []byte, now uint64, cpu int64) {
		var cur []record
		for i := range len(b) / recordSize {
			cur = append(cur, decode(b[i*recordSize:], now))
			cur[i].cpu = uint32(i)
		}
		sum := since(cur, nil)
		r := sum.reading(time.Duration(max(0, cpu)), true)
		if math.IsInf(r.Cost, 0) || r.Cost < 0 || r.Coverage < 0 || r.Coverage > 1 || math.IsNaN(r.Coverage) {
			t.Errorf("%+v of %+v", r, sum)
		}
		table := make([]byte, tableSize)
		copy(table, b)
		var a account
		pairs, _ := decodePairs(nil, table, uint32(now))
		a.settle(pairs)
		for _, p := range a.pairs {
			if served, known := a.servedFor(uint32(p.waits), sum.other, make([]sample.TaskKey, 1<<16)); known > sum.other || len(served) > len(a.pairs) {
				t.Errorf("%d of %d ns, %v", known, sum.other, served)
			}
		}
	})
}
