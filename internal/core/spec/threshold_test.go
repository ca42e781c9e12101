package spec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// drawn makes samples of five tasks, each on a machine of its own, over two days.
func drawn(draw func() float64) (all []seen) {
	for at := began; at < began+2*day; at += HourMS / 10 {
		for task := range uint64(5) {
			all = append(all, seen{at: at, task: task, cpu: 1, cost: float32(draw()), machine: task})
		}
	}
	return all
}

// TestThresholdFollowsTheTail: whatever the shape of a distribution, about 4 % of new samples are
// above the threshold of its quantile or fit. Above mean + 2 σ it is 0 to 5 %.
func TestThresholdFollowsTheTail(t *testing.T) {
	var r *rand.Rand
	gev := func(g stat.GEV) func() float64 { return func() float64 { return g.Quantile(r.Float64()) } }
	key := Key{Job: "web", Platform: "p", Signal: sample.CPI}
	for name, draw := range map[string]func() float64{
		"figure 7":   gev(stat.Figure7),
		"heavy tail": gev(stat.GEV{Location: 1, Scale: 0.2, Shape: 0.15}),
		"bounded":    gev(stat.GEV{Location: 1, Scale: 0.2, Shape: -0.6}),
		"normal":     func() float64 { return 2 + 0.2*r.NormFloat64() },
	} {
		r = rand.New(rand.NewPCG(3, 4))
		all := drawn(draw)
		for _, by := range []Threshold{BySigmas, ByQuantile, ByGEV} {
			p := Paper()
			p.Threshold = by
			l := Learn(p, key, hoursOf(2, all...), began+2*day)
			if (l.Sigmas > 0) != (by != BySigmas) {
				t.Errorf("%s, by %s: %v standard deviations", name, by, l.Sigmas)
			}
			if by == BySigmas {
				continue
			}
			const n = 20_000
			above := 0
			for range n {
				if draw() > l.Mean+l.Sigmas*l.StdDev {
					above++
				}
			}
			if share := float64(above) / n; math.Abs(share-p.Above) > 0.012 {
				t.Errorf("%s, by %s: %.3f of new samples are above mean + %.2f σ, want %v", name, by, share, l.Sigmas, p.Above)
			}
		}
	}
}

// TestThresholdNeedsADistribution: it stays the agents' own where the samples do not say more.
func TestThresholdNeedsADistribution(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	wide := drawn(func() float64 { return 2 + 0.2*r.NormFloat64() })
	for name, c := range map[string]struct {
		samples []seen
		above   float64
	}{
		"few above it":                      {wide, 0.001},
		"narrower than the sketch can tell": {drawn(func() float64 { return 2 + 0.02*r.NormFloat64() }), 0.04},
		"all equal":                         {drawn(func() float64 { return 2 }), 0.04},
		"none":                              {nil, 0.04},
	} {
		for _, by := range []Threshold{ByQuantile, ByGEV} {
			p := Paper()
			p.Threshold, p.Above = by, c.above
			if l := Learn(p, Key{Signal: sample.CPI}, hoursOf(1, c.samples...), began+2*day); l.Sigmas != 0 {
				t.Errorf("%s, by %s: %v standard deviations", name, by, l.Sigmas)
			}
		}
	}
}

// TestThresholdIsBounded: a machine that reports any samples moves the threshold within bounds of the
// other machines' mean and deviation.
func TestThresholdIsBounded(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	honest := drawn(func() float64 { return 2 + 0.2*r.NormFloat64() })
	for _, lie := range []float64{0, 50, 9000} {
		all := honest
		for range 20 * len(honest) {
			all = append(all, seen{at: began + day, task: 99, cpu: 1, cost: float32(lie), machine: 99})
		}
		for _, by := range []Threshold{ByQuantile, ByGEV} {
			p := Paper()
			p.Threshold = by
			l := Learn(p, Key{Signal: sample.CPI}, hoursOf(1, all...), began+2*day)
			if most := math.Sqrt(1/p.Above - 1); l.Sigmas != 0 && l.Sigmas < leastSigmas || l.Sigmas > most || math.Abs(l.Mean-2) > 0.02 || l.StdDev > 0.25 {
				t.Errorf("%v reported, by %s: %v ± %v, threshold at %v", lie, by, l.Mean, l.StdDev, l.Sigmas)
			}
		}
	}
}

// TestThresholdBetweenComputations: it moves with the mean and the deviation.
func TestThresholdBetweenComputations(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	p := Paper()
	p.Threshold = ByQuantile
	key := Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "v"}
	base := Learn(p, key, hoursOf(1, drawn(func() float64 { return 2 + 0.2*r.NormFloat64() })...), began+2*day)
	l := NewLive(p, 0, 10_000)
	l.Rebase(began+2*day, []Computed{base})
	for i := range sample.Millis(400) {
		l.Add(&sample.Sample{TS: began + 2*day + 1 + i, Machine: "m", Task: "/t", Job: "web", Platform: "p", Signal: sample.CPI, Variant: "v", CPU: 1, Cost: 2.4})
	}
	l.Advance(began + 3*day)
	if all := l.Changed(began + 3*day); len(all) != 1 || all[0].Sigmas != base.Sigmas || base.Sigmas == 0 {
		t.Errorf("%d changed, %v standard deviations before", len(all), base.Sigmas)
	}
}
