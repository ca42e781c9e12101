package workload

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// pingPong calls PingPong; it skips the test where the threads never run at once
// (emulator).
func pingPong(t testing.TB, a, b int, d time.Duration) RoundTrip {
	t.Helper()
	rt, err := PingPong(a, b, d)
	if errors.Is(err, ErrNotParallel) {
		quelltest.Skip(t, "two-cpus-at-once", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func TestPingPongMeasuresAlsoOnBusyCPUs(t *testing.T) {
	on := cpus(t, 2)
	tree := openTree(t, TreeOptions{})
	check := func(state string) {
		t.Helper()
		rt := pingPong(t, on[0], on[1], 50*time.Millisecond)
		t.Logf("%s: %+v, shared %v", state, rt, SharesCache(rt))
		// Light needs some ns for a centimetre.
		if rt.Min < 5*time.Nanosecond || rt.Median < rt.Min || rt.Bursts < leastBursts || rt.CPU < rt.Min {
			t.Errorf("%s: odd round trip %+v", state, rt)
		}
	}
	check("idle")
	s := Spec{Kind: Spin, Period: time.Second, Duty: 1}
	for _, cpu := range on {
		start(t, tree, "spin", s, StartOptions{CPUs: sample.SetOf(cpu)})
	}
	check("busy")
}

func TestPingPongRefuses(t *testing.T) {
	on := cpus(t, 2)
	if _, err := PingPong(on[0], on[0], time.Millisecond); err == nil {
		t.Error("played a CPU against itself")
	}
	if _, err := PingPong(on[0], 1023, time.Millisecond); err == nil {
		t.Error("played against a CPU that there is not")
	}
	if _, err := PingPong(1023, on[0], time.Millisecond); err == nil {
		t.Error("played from a CPU that there is not")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if _, err := PingPong(on[0], on[1], time.Millisecond); !errors.Is(err, ErrOneThread) {
		t.Errorf("with GOMAXPROCS=1: %v", err)
	}
}

func TestShared(t *testing.T) {
	trip := func(ns int) RoundTrip { return RoundTrip{Min: time.Duration(ns)} }
	for _, c := range []struct {
		rt     int
		others []int
		want   bool
	}{
		{70, nil, true},
		{380, nil, false},
		{380, []int{70}, false},
		{300, []int{310, 900}, true},   // slow machine, with a contrast
		{400, []int{310, 900}, true},   // within half again of the nearest
		{900, []int{310, 320}, false},  // the far pair itself
		{300, []int{310, 320}, false},  // no contrast: not decidable
		{300, []int{100, 1000}, false}, // another pair is near: this one is not
	} {
		var others []RoundTrip
		for _, o := range c.others {
			others = append(others, trip(o))
		}
		if got := SharesCache(trip(c.rt), others...); got != c.want {
			t.Errorf("%d ns among %v: shared %v, want %v", c.rt, c.others, got, c.want)
		}
	}
}
