package analyse

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/stat"
)

// The points of one machine belong together: an interval that assumes independence
// would have far too low a coverage. Each machine has its own position in x and y, and
// its own slope.
func TestCorrelationIntervalCovers(t *testing.T) {
	machines := func(r *rand.Rand, n, points int, between float64) []Pairs {
		var all []Pairs
		for range n {
			mx, my := between*r.NormFloat64(), between*r.NormFloat64()
			var p Pairs
			for range points {
				x := r.NormFloat64()
				p.X = append(p.X, mx+x)
				p.Y = append(p.Y, my+0.8*x+0.6*r.NormFloat64())
			}
			all = append(all, p)
		}
		return all
	}
	// x and y have variance 1 + between², and a covariance of 0.8 within machines.
	for name, c := range map[string]struct {
		machines, points int
		between          float64
	}{"20 machines that differ": {20, 6, 1}, "12 machines that hardly do": {12, 10, 0.1}, "2 machines that do not": {2, 20, 0}} {
		truth := 0.8 / (1 + c.between*c.between)
		covers(t, name, 1000**long, func(r *rand.Rand) (Interval, float64) {
			i := CorrelationInterval(machines(r, c.machines, c.points, c.between), stat.Pearson)
			if over := strings.Contains(i.Method, "over runs"); over != (c.machines < fewMachines) {
				t.Fatalf("%s: %s", name, i.Method)
			}
			return i, truth
		})
	}
}

func TestCorrelationIntervalOfTooLittle(t *testing.T) {
	for name, c := range map[string]struct {
		machines []Pairs
		value    float64
	}{
		"nothing":      {nil, math.NaN()},
		"three points": {[]Pairs{{[]float64{1, 2, 4}, []float64{1, 3, 4}}}, 0.9286},
		"a line":       {[]Pairs{{[]float64{1, 2, 3, 4, 5}, []float64{2, 4, 6, 8, 10}}}, 1},
		"a constant":   {[]Pairs{{[]float64{1, 1, 1, 1, 1}, []float64{2, 4, 6, 8, 9}}}, math.NaN()},
	} {
		i := CorrelationInterval(c.machines, stat.Pearson)
		if !math.IsNaN(i.Low) || !math.IsNaN(i.High) || !near(i.Value, c.value, 1e-3) && !(math.IsNaN(c.value) && math.IsNaN(i.Value)) {
			t.Errorf("%s: %+v", name, i)
		}
	}
	// The bounds are within −1 and 1, and around the value.
	i := CorrelationInterval([]Pairs{{[]float64{1, 2, 3, 4, 5}, []float64{2, 1, 4, 3, 6}}}, stat.Spearman)
	if !near(i.Value, 0.8, 1e-9) || !(i.Low >= -1 && i.Low < i.Value && i.Value < i.High && i.High <= 1) || i.N != 5 {
		t.Errorf("%+v", i)
	}
}
