package stat

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestFitLogisticFindsWhatMadeTheData: the fitted coefficients are close to those that
// the data were drawn with.
func TestFitLogisticFindsWhatMadeTheData(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	truth := Logistic{Coef: []float64{1.5, -0.7}, Intercept: -0.4}
	const n = 20_000
	x, y := make([][]float64, n), make([]bool, n)
	for i := range x {
		x[i] = []float64{rng.NormFloat64(), 3 * rng.Float64()}
		y[i] = rng.Float64() < truth.P(x[i])
	}
	l, ok := FitLogistic(x, y, nil)
	if !ok || math.Abs(l.Intercept-truth.Intercept) > 0.15 || math.Abs(l.Coef[0]-1.5) > 0.1 || math.Abs(l.Coef[1]+0.7) > 0.1 {
		t.Errorf("%+v, %v", l, ok)
	}
	// At the maximum the predicted sum equals the observed sum: the intercept's equation.
	var said, was float64
	for i := range x {
		said += l.P(x[i])
		if y[i] {
			was++
		}
	}
	if math.Abs(said-was) > 1e-3 {
		t.Errorf("said %v, was %v", said, was)
	}
}

// TestFitLogisticWeights: a row of weight 3 equals three rows.
func TestFitLogisticWeights(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var x, x3 [][]float64
	var y, y3 []bool
	var w []float64
	for range 300 {
		row, is := []float64{rng.NormFloat64()}, rng.IntN(3) == 0
		x, y, w = append(x, row), append(y, is), append(w, 3)
		x3, y3 = append(x3, row, row, row), append(y3, is, is, is)
	}
	a, ok := FitLogistic(x, y, w)
	b, same := FitLogistic(x3, y3, nil)
	if !ok || !same || math.Abs(a.Intercept-b.Intercept) > 1e-6 || math.Abs(a.Coef[0]-b.Coef[0]) > 1e-6 {
		t.Errorf("%+v, %v; %+v, %v", a, ok, b, same)
	}
}

// TestFitLogisticHasAnAnswerWhereDataAreSeparable: without the ridge penalty the
// likelihood has no maximum there. Without data there is no fit.
func TestFitLogisticHasAnAnswerWhereDataAreSeparable(t *testing.T) {
	x, y := [][]float64{{-2}, {-1}, {1}, {2}}, []bool{false, false, true, true}
	l, ok := FitLogistic(x, y, nil)
	if !ok || l.P([]float64{-1}) > 0.05 || l.P([]float64{1}) < 0.95 {
		t.Errorf("%+v, %v", l, ok)
	}
	if _, ok := FitLogistic(nil, nil, nil); ok {
		t.Error("there is a fit of nothing")
	}
}
