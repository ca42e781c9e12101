package stat

import (
	"math"

	"gonum.org/v1/gonum/mat"
)

// Logistic is a logistic regression: the probability that something is true is
// 1/(1 + exp(−(Intercept + Σ Coef·x))).
type Logistic struct {
	Coef      []float64
	Intercept float64
}

// FitLogistic fits by maximum likelihood (Newton's method), with a small ridge penalty on
// the coefficients so that separable data have a solution. x has a row for each of y; w
// are weights, nil for 1. ok is false if the method does not converge.
func FitLogistic(x [][]float64, y []bool, w []float64) (l Logistic, ok bool) {
	if len(x) == 0 {
		return Logistic{}, false
	}
	const (
		ridge = 1e-3 // penalty; numerical
		steps = 100  // maximum number of iterations; numerical
		close = 1e-8 // largest change of a coefficient that ends them; numerical
	)
	n := len(x[0]) + 1
	beta, row := make([]float64, n), make([]float64, n)
	row[0] = 1
	for range steps {
		g, h := make([]float64, n), make([]float64, n*n) // of h the upper triangle
		for a := 1; a < n; a++ {
			h[a*n+a], g[a] = ridge, -ridge*beta[a]
		}
		for i := range x {
			copy(row[1:], x[i])
			weight, target := 1.0, 0.0
			if w != nil {
				weight = w[i]
			}
			if y[i] {
				target = 1
			}
			var z float64
			for a, v := range row {
				z += beta[a] * v
			}
			p := 1 / (1 + math.Exp(-z))
			for a, v := range row {
				g[a] += weight * (target - p) * v
				for b := a; b < n; b++ {
					h[a*n+b] += weight * p * (1 - p) * v * row[b]
				}
			}
		}
		var root mat.Cholesky
		var step mat.VecDense
		if !root.Factorize(mat.NewSymDense(n, h)) || root.SolveVecTo(&step, mat.NewVecDense(n, g)) != nil {
			return Logistic{}, false
		}
		for a := range beta {
			beta[a] += step.AtVec(a)
		}
		if mat.Norm(&step, math.Inf(1)) < close {
			return Logistic{Coef: beta[1:], Intercept: beta[0]}, true
		}
	}
	return Logistic{}, false
}

// P is the probability for one row.
func (l *Logistic) P(x []float64) float64 {
	z := l.Intercept
	for i, c := range l.Coef {
		z += c * x[i]
	}
	return 1 / (1 + math.Exp(-z))
}
