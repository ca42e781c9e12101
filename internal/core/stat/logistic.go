package stat

import "math"

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
	const ridge, steps = 1e-3, 100
	n := len(x[0]) + 1
	beta, row := make([]float64, n), make([]float64, n)
	row[0] = 1
	for range steps {
		g, h := make([]float64, n), make([][]float64, n)
		for a := range h {
			h[a] = make([]float64, n+1)
			if a > 0 {
				h[a][a], g[a] = ridge, -ridge*beta[a]
			}
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
				for b := range a + 1 {
					h[a][b] += weight * p * (1 - p) * v * row[b]
				}
			}
		}
		for a := range h {
			for b := a + 1; b < n; b++ {
				h[a][b] = h[b][a]
			}
			h[a][n] = g[a]
		}
		if !solve(h) {
			return Logistic{}, false
		}
		most := 0.0
		for a := range beta {
			beta[a] += h[a][n]
			most = max(most, math.Abs(h[a][n]))
		}
		if most < 1e-8 {
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

// solve solves the equations in m, which has one more column than rows (Gauss, with
// pivots). The solution is in the last column; false if there is none.
func solve(m [][]float64) bool {
	n := len(m)
	for c := range n {
		pivot := c
		for r := c; r < n; r++ {
			if math.Abs(m[r][c]) > math.Abs(m[pivot][c]) {
				pivot = r
			}
		}
		if !(math.Abs(m[pivot][c]) > 1e-12) {
			return false
		}
		m[c], m[pivot] = m[pivot], m[c]
		for r := range m {
			if r == c {
				continue
			}
			f := m[r][c] / m[c][c]
			for k := c; k <= n; k++ {
				m[r][k] -= f * m[c][k]
			}
		}
	}
	for c := range n {
		m[c][n] /= m[c][c]
	}
	return true
}
