package analyse

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// blocks returns the times of one machine, of each mapping in each repetition: exp(mean
// + the repetition's shift + noise).
func blocks(r *rand.Rand, means []float64, repetitions int, shift, noise float64) *mappedPart {
	p := &mappedPart{part: "vm", times: map[string]map[int]float64{}}
	common := make([]float64, repetitions)
	for n := range common {
		common[n] = shift * r.NormFloat64()
	}
	for i, m := range means {
		times := map[int]float64{}
		for n := range repetitions {
			times[n] = math.Exp(m + common[n] + noise*r.NormFloat64())
		}
		p.times[fmt.Sprint(i)] = times
	}
	return p
}

// The measured worst over the measured best lies above the truth most of the time,
// since both were selected; the interval still contains the truth, also where no
// mapping is worse than another.
func TestWorstCovers(t *testing.T) {
	for name, c := range map[string]struct {
		machines    int
		means       []float64
		repetitions int
	}{
		"all mappings alike":      {4, []float64{0, 0, 0}, 5},
		"one is worse":            {4, []float64{0, 0.01, 0.3}, 5},
		"many alike, two of each": {2, []float64{0, 0, 0, 0.05, 0.05, 0.05}, 3},
		"two repetitions":         {4, []float64{0, 0.1, 0.2}, 2},
	} {
		hits, above, times := 0, 0, 500**long
		lowest, highest := math.Inf(1), math.Inf(-1)
		for _, m := range c.means {
			lowest, highest = min(lowest, m), max(highest, m)
		}
		truth := 100 * math.Expm1(highest-lowest)
		for k := range times {
			r := rand.New(rand.NewPCG(11, uint64(k)))
			var parts []*mappedPart
			measured := 0.0
			for range c.machines {
				p := blocks(r, c.means, c.repetitions, 0.2, 0.05)
				parts = append(parts, p)
				var ts []float64
				for _, name := range sortedKeys(p.times) {
					ts = append(ts, meanOf(p.times[name]))
				}
				_, _, w := OverBest(ts)
				measured = max(measured, w)
			}
			i := worstInterval(measured, parts, "default")
			if i.N != c.repetitions {
				t.Fatalf("%s: %+v", name, i)
			}
			if i.Low <= truth && truth <= i.High {
				hits++
			}
			if measured > truth {
				above++
			}
		}
		share := float64(hits) / float64(times)
		t.Logf("%s: covers %.1f %%, the measured worst is above the truth in %.0f %%", name, 100*share, 100*float64(above)/float64(times))
		if share < 0.95-3*math.Sqrt(0.95*0.05/float64(times)) {
			t.Errorf("%s: the interval covers %.1f %%", name, 100*share)
		}
		if float64(above)/float64(times) < 0.6 {
			t.Errorf("%s: the measured worst is above the truth in %d of %d; then nothing was chosen here", name, above, times)
		}
	}
}

func TestWorstNeedsWholeRepetitions(t *testing.T) {
	part := func(times map[string]map[int]float64) []*mappedPart { return []*mappedPart{{part: "vm", times: times}} }
	for name, c := range map[string]struct {
		parts []*mappedPart
		n     int
		known bool
	}{
		"none":                    {nil, 0, false},
		"one mapping":             {part(map[string]map[int]float64{"a": {0: 1, 1: 2}}), 0, false},
		"one repetition":          {part(map[string]map[int]float64{"a": {0: 1}, "b": {0: 2}}), 1, false},
		"never both":              {part(map[string]map[int]float64{"a": {0: 1, 1: 1}, "b": {2: 2, 3: 2}}), 0, false},
		"two":                     {part(map[string]map[int]float64{"a": {0: 1, 1: 1.1}, "b": {0: 2, 1: 2.1}}), 2, true},
		"default is none of them": {part(map[string]map[int]float64{"a": {0: 1, 1: 1.1}, "b": {0: 2, 1: 2.1}, "default": {0: 9}}), 2, true},
	} {
		i := worstInterval(100, c.parts, "default")
		if known := !math.IsNaN(i.Low) && !math.IsNaN(i.High); known != c.known || i.N != c.n || i.Value != 100 {
			t.Errorf("%s: %+v", name, i)
		}
		if c.known && !(i.Low >= 0 && i.Low < 100 && i.High > 95) {
			t.Errorf("%s: %+v", name, i)
		}
	}
}

// Paper 000, section 5: arithmetic and geometric mean over the sets of workloads.
func TestHeadline(t *testing.T) {
	set := func(average, worst float64) MappingResult {
		i := Interval{Value: worst, Low: worst - 1, High: worst + 1}
		return MappingResult{Average: average, Worst: worst, Interval: Interval{Value: average, Low: average - 0.5, High: average + 0.5}, WorstInterval: i}
	}
	if h := headline([]MappingResult{set(1, 2)}, nil); h != nil {
		t.Errorf("of one set: %+v", h)
	}
	h := headline([]MappingResult{set(1, 5), set(4, 135), set(16, 25)}, nil)
	if h.Sets != 3 || h.Average.Least.High != 1.5 || h.Average.Largest.Value != 16 || !near(h.Average.Mean.Value, 7, 1e-12) || !near(h.Average.Geometric.Value, 4, 1e-12) {
		t.Errorf("%+v", h)
	}
	if h.Worst.Largest.Low != 134 || !near(h.Worst.Mean.Value, 55, 1e-12) || !near(h.Worst.Geometric.Value, math.Cbrt(5*135*25), 1e-9) {
		t.Errorf("%+v", h)
	}
	if g := h.Worst.Geometric; !(g.Low > 0 && g.Low < g.Value && g.Value < g.High) {
		t.Errorf("%+v", g)
	}
	// If a set has no difference there is no geometric mean.
	if g := headline([]MappingResult{set(0, 0), set(2, 3)}, nil).Average.Geometric; !math.IsNaN(g.Value) || g.N != 2 {
		t.Errorf("%+v", g)
	}
}
