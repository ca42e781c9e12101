package main

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The spread and the autocorrelation of a series with known values are found.
func TestCorrelation(t *testing.T) {
	const stay, spread, n = 0.8, 0.1, 20000
	rng := rand.New(rand.NewPCG(1, 2))
	var all []point
	x := 0.0
	for i := range n {
		x = stay*x + math.Sqrt(1-stay*stay)*rng.NormFloat64()
		all = append(all, point{time.Duration(i) * window, 2 * (1 + spread*x), 1})
	}
	m := moments(of(all, func(p point) float64 { return p.cost }))
	if got := m.StdDev() / m.Mean; math.Abs(got-spread) > 0.01 {
		t.Errorf("σ ÷ mean %v, want %v", got, spread)
	}
	for lag, want := range map[time.Duration]float64{window: stay, time.Minute: math.Pow(stay, 6)} {
		// The tolerance of the lag admits pairs whose distance differs by one window.
		if got, ok := correlation(all, lag); !ok || math.Abs(got-want) > 0.1 {
			t.Errorf("correlation with %v before: %v, want %v", lag, got, want)
		}
	}
	if _, ok := correlation(all[:least], window); ok {
		t.Error("a correlation of too few samples")
	}
}

// Shorter samples are merged by the work in them, and no window has a gap.
func TestAveraged(t *testing.T) {
	var all []point
	for i := range 30 {
		if i == 14 {
			continue
		}
		p := point{time.Duration(i) * time.Second, 1, 1}
		if i%2 == 1 {
			p = point{p.at, 3, 3} // the same work at three times the cost
		}
		all = append(all, p)
	}
	got := averaged(all, time.Second)
	if len(got) != 2 || got[0] != (point{0, 2, 2}) || got[1].at != 15*time.Second || averaged(all, time.Minute)[3] != all[3] {
		t.Errorf("%+v", got)
	}
}
