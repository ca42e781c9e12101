package stat

import (
	"math"
	"math/rand/v2"
	"testing"
)

// naive computes weighted mean and unbiased standard deviation in two passes.
func naive(x, w []float64) (mean, sd float64) {
	var sw, sw2, sx float64
	for i := range x {
		sw += w[i]
		sw2 += w[i] * w[i]
		sx += w[i] * x[i]
	}
	mean = sx / sw
	var ss float64
	for i := range x {
		ss += w[i] * (x[i] - mean) * (x[i] - mean)
	}
	return mean, math.Sqrt(ss / (sw - sw2/sw))
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(a)+math.Abs(b)) }

func TestMomentsAgreeWithTwoPasses(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		n := 2 + rng.IntN(60)
		x, w := make([]float64, n), make([]float64, n)
		var left, right Moments
		for i := range x {
			x[i], w[i] = 1e3+rng.NormFloat64(), 0.1+rng.Float64()
			if i < n/2 {
				left.Add(x[i], w[i])
			} else {
				right.Add(x[i], w[i])
			}
		}
		left.Merge(right)
		mean, sd := naive(x, w)
		if !near(left.Mean, mean) || math.Abs(left.StdDev()-sd) > 1e-6 || left.N != int64(n) {
			t.Fatalf("merged %+v sd %v, two passes say mean %v sd %v", left, left.StdDev(), mean, sd)
		}
	}
}

func TestDecayWeighsThePastLess(t *testing.T) {
	var m Moments
	m.Add(10, 1)
	m.Decay(0.9)
	m.Add(20, 1)
	mean, sd := naive([]float64{10, 20}, []float64{0.9, 1})
	if !near(m.Mean, mean) || !near(m.StdDev(), sd) {
		t.Errorf("got mean %v sd %v, want %v %v", m.Mean, m.StdDev(), mean, sd)
	}
}

func TestStdDevOfNothingIsZero(t *testing.T) {
	var m Moments
	if m.StdDev() != 0 {
		t.Errorf("empty: %v", m.StdDev())
	}
	m.Add(3, 1)
	if m.StdDev() != 0 {
		t.Errorf("one value: %v", m.StdDev())
	}
	m.Add(3, 1)
	if m.StdDev() != 0 {
		t.Errorf("equal values: %v", m.StdDev())
	}
}
