package udpload

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// Lost datagrams are found by their numbers, per flow, and only from the beginning of the
// counted time.
func TestTally(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.77.0.1:4000"), netip.MustParseAddrPort("10.77.0.1:4001")
	type come struct {
		from    netip.AddrPort
		numbers []uint64
	}
	for _, c := range []struct {
		name          string
		before, after []come
		came, lost    uint64
	}{
		{"all", nil, []come{{a, []uint64{0, 1, 2}}, {b, []uint64{0, 1}}}, 5, 0},
		{"one missing in each flow", nil, []come{{a, []uint64{0, 2, 3}}, {b, []uint64{0, 1, 2, 4}}}, 7, 2},
		{"overtaken is not missing", nil, []come{{a, []uint64{0, 2, 1, 3}}}, 4, 0},
		{"what was missed before counts no more", []come{{a, []uint64{0, 9}}}, []come{{a, []uint64{10, 11}}}, 2, 0},
		{"the first that was due", []come{{a, []uint64{0, 1}}}, []come{{a, []uint64{3}}}, 1, 1},
		{"a flow met late owes nothing before", nil, []come{{a, []uint64{500, 502}}}, 2, 1},
		{"nothing comes", []come{{a, []uint64{0, 1}}}, nil, 0, 0},
		{"late ones of before are not lost again", []come{{a, []uint64{0, 1, 5}}}, []come{{a, []uint64{4, 6}}}, 2, 0},
	} {
		var y tally
		for _, x := range c.before {
			for _, n := range x.numbers {
				y.add(x.from, n, 1400)
			}
		}
		y.begin()
		for _, x := range c.after {
			for _, n := range x.numbers {
				y.add(x.from, n, 1400)
			}
		}
		came, lost := y.counts()
		if came != c.came || lost != c.lost || y.bits != int64(c.came)*1442*8 {
			t.Errorf("%s: %d came, %d lost, %d bits; want %d and %d", c.name, came, lost, y.bits, c.came, c.lost)
		}
	}
}

// Any input is either a datagram of this package, read as it was written, or rejected.
func FuzzRead(f *testing.F) {
	f.Add([]byte("qlud"))
	f.Add(append([]byte("qlud"), make([]byte, 16)...))
	f.Add(make([]byte, 1472))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, at, ok := read(b)
		if !ok {
			return
		}
		again := bytes.Clone(b)
		putHeader(again, n, at)
		if !bytes.Equal(again, b) {
			t.Errorf("%x is read as %d at %d, which is %x", b, n, at, again)
		}
	})
}

const udpTable = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  203: 00000000:1451 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 48391 2 0000000000000000 17
  203: 0100007F:1451 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 48392 2 0000000000000000 3
  519: 00000000:1452 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 48393 2 0000000000000000 99
`

func TestDropsIn(t *testing.T) {
	for port, want := range map[uint16]uint64{0x1451: 20, 0x1452: 99} {
		if n, ok := dropsIn(strings.NewReader(udpTable), port); !ok || n != want {
			t.Errorf("port %x: %d, %v; want %d", port, n, ok, want)
		}
	}
	if n, ok := dropsIn(strings.NewReader(udpTable), 80); ok {
		t.Errorf("port without a socket: %d", n)
	}
}

// An additional row adds its drops, for any other content of the table.
func FuzzDropsIn(f *testing.F) {
	f.Add(udpTable, uint16(0x1451), uint32(7))
	f.Add("x y z", uint16(0), uint32(0))
	f.Fuzz(func(t *testing.T, table string, port uint16, drops uint32) {
		row := fmt.Sprintf("  1: 00000000:%04X 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0000000000000000 %d\n", port, drops)
		before, _ := dropsIn(strings.NewReader(table), port)
		if n, ok := dropsIn(strings.NewReader(row+table), port); !ok || n != before+uint64(drops) {
			t.Errorf("%d and %d are %d, %v", before, drops, n, ok)
		}
	})
}

func TestOfTrips(t *testing.T) {
	const ms = 1e6
	for _, c := range []struct {
		name        string
		sent, trips []int64
		want        map[string]float64
	}{
		{"none", nil, nil, map[string]float64{result.PingCount: 0}},
		{"all lost", []int64{0, 1}, []int64{-1, -1}, map[string]float64{result.PingCount: 2, result.PingLost: 1}},
		{"one late, one too recent to be lost", []int64{0, 1, 2, 3, 900}, []int64{2 * ms, 4 * ms, 60 * ms, 3 * ms, -1},
			map[string]float64{result.PingCount: 4, result.PingLost: 0.25, result.PingMean: 0.003, result.PingP50: 0.003, result.PingP90: 0.004, result.PingP99: 0.004, result.PingMax: 0.004}},
	} {
		got := pingValues(c.sent, c.trips, 800, 50*ms)
		for name, v := range got {
			got[name] = float64(int64(v*1e9+0.5)) / 1e9
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}
