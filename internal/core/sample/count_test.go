package sample_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func TestSince(t *testing.T) {
	type c = sample.Count
	type d = sample.Delta
	for _, tc := range []struct {
		name      string
		prev, cur c
		want      d
	}{
		{"counting all the time", c{100, 1000, 1000}, c{400, 2000, 2000}, d{Value: 300, Enabled: 1000, Running: 1000}},
		{"first reading", c{}, c{300, 1000, 1000}, d{Value: 300, Enabled: 1000, Running: 1000}},
		{"half of the time scales by two", c{100, 1000, 1000}, c{400, 2000, 1500}, d{Value: 600, Enabled: 1000, Running: 500}},
		// The lifetime's ratio, 2000/1100, would give 545.
		{"the interval's ratio, not the lifetime's", c{100, 1000, 1000}, c{400, 2000, 1100}, d{Value: 3000, Enabled: 1000, Running: 100}},
		{"enabled and never counting is not zero", c{100, 1000, 1000}, c{100, 2000, 1000}, d{Enabled: 1000, Uncounted: true}},
		{"never counting since the start", c{}, c{0, 1000, 0}, d{Enabled: 1000, Uncounted: true}},
		{"not enabled is a true zero", c{100, 1000, 1000}, c{100, 1000, 1000}, d{}},
		{"not enabled since the start", c{}, c{}, d{}},
		{"counted nothing while counting is a true zero", c{100, 1000, 1000}, c{100, 2000, 2000}, d{Enabled: 1000, Running: 1000}},
		{"value went back", c{400, 1000, 1000}, c{100, 2000, 2000}, d{Value: 100, Enabled: 2000, Running: 2000, Restart: true}},
		{"enabled went back", c{100, 1000, 500}, c{400, 900, 900}, d{Value: 400, Enabled: 900, Running: 900, Restart: true}},
		{"running went back", c{100, 1000, 1000}, c{400, 2000, 900}, d{Value: 400 * 2000. / 900, Enabled: 2000, Running: 900, Restart: true}},
		{"restarted and never counting", c{100, 1000, 1000}, c{0, 50, 0}, d{Enabled: 50, Restart: true, Uncounted: true}},
		{"restarted at nothing", c{100, 1000, 1000}, c{}, d{Restart: true}},
		{"near the end of 64 bits", c{math.MaxUint64 - 10, 1, 1}, c{math.MaxUint64, 2, 2}, d{Value: 10, Enabled: 1, Running: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.cur.Since(tc.prev); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// A counter is on the PMU for part of each interval, at a rate that changes. The sum of
// the scaled differences is the true count. The lifetime's value scaled by the lifetime's
// ratio is not, and can fall.
func TestSinceSumsToTheTruth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var prev, cur sample.Count
	var truth, sum, lifetime float64
	fell := false
	for range 10_000 {
		const interval = 1_000_000
		rate := float64(rng.IntN(1000)) // events/ns
		share := 1 + rng.IntN(100)      // percent
		running := uint64(interval / 100 * share)
		prev = cur
		cur.Value += uint64(rate * float64(running))
		cur.Enabled += interval
		cur.Running += running
		truth += rate * interval
		d := cur.Since(prev)
		if d.Restart || d.Uncounted || d.Value < 0 {
			t.Fatalf("%+v since %+v: %+v", cur, prev, d)
		}
		sum += d.Value
		now := float64(cur.Value) * float64(cur.Enabled) / float64(cur.Running)
		fell = fell || now < lifetime
		lifetime = now
	}
	if math.Abs(sum/truth-1) > 1e-9 {
		t.Errorf("sum %g, truth %g", sum, truth)
	}
	if !fell {
		t.Error("the lifetime's estimate never fell: the run does not tell the two apart")
	}
}

func FuzzSince(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint64(3), uint64(4), uint64(5), uint64(6))
	f.Add(uint64(math.MaxUint64), uint64(0), uint64(0), uint64(0), uint64(math.MaxUint64), uint64(1))
	f.Fuzz(func(t *testing.T, v0, e0, r0, v1, e1, r1 uint64) {
		prev, cur := sample.Count{Value: v0, Enabled: e0, Running: r0}, sample.Count{Value: v1, Enabled: e1, Running: r1}
		d := cur.Since(prev)
		switch {
		case math.IsNaN(d.Value) || math.IsInf(d.Value, 0) || d.Value < 0:
			t.Errorf("value %g", d.Value)
		case d.Restart != (v1 < v0 || e1 < e0 || r1 < r0):
			t.Errorf("restart %v", d.Restart)
		case d.Uncounted != (d.Enabled > 0 && d.Running == 0):
			t.Errorf("uncounted %v with enabled %d, running %d", d.Uncounted, d.Enabled, d.Running)
		case d.Uncounted && d.Value != 0:
			t.Errorf("uncounted with value %g", d.Value)
		}
	})
}

func TestMonotonic(t *testing.T) {
	for _, c := range []struct {
		cur, prev, delta uint64
		restarted        bool
	}{
		{5, 3, 2, false},
		{3, 3, 0, false},
		{2, 3, 2, true},
		{0, 3, 0, true},
		{math.MaxUint64, 0, math.MaxUint64, false},
	} {
		if delta, restarted := sample.Monotonic(c.cur, c.prev); delta != c.delta || restarted != c.restarted {
			t.Errorf("Monotonic(%d, %d) = %d, %v; want %d, %v", c.cur, c.prev, delta, restarted, c.delta, c.restarted)
		}
	}
}
