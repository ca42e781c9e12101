// Package stat holds the statistics that quell's core needs, without any I/O.
package stat

import "math"

// Moments is a running weighted mean and variance (West, CACM 22(9), 1979). Weights are reliability
// weights: how much a value is trusted, not how often it occurred. Moments of disjoint sets of values
// can be merged. The zero value is empty.
type Moments struct {
	N    int64   `json:"n"`    // values added
	W    float64 `json:"w"`    // Σw
	W2   float64 `json:"w2"`   // Σw²
	Mean float64 `json:"mean"` // weighted mean; 0 while empty
	M2   float64 `json:"m2"`   // Σw(x−mean)²
}

// Add adds x with weight w > 0.
func (m *Moments) Add(x, w float64) {
	m.Merge(Moments{N: 1, W: w, W2: w * w, Mean: x})
}

// Merge adds all values of o (Chan, Golub and LeVeque, 1979).
func (m *Moments) Merge(o Moments) {
	if o.N == 0 || o.W == 0 {
		return
	}
	w := m.W + o.W
	d := o.Mean - m.Mean
	m.M2 += o.M2 + d*d*m.W*o.W/w
	m.Mean += d * o.W / w
	m.N, m.W, m.W2 = m.N+o.N, w, m.W2+o.W2
}

// MaxValue is more than any measured value or weight. Below it nothing that is computed from
// moments overflows.
const MaxValue = 1e75

// MaxMeasured is more than any measured cost, usage or number of operations, and so little that moments of
// such values, and of their ratios, remain below MaxValue.
const MaxMeasured = 1e30

// Sane reports whether values that are not negative can have these moments. The moments
// may come from a damaged file.
func (m *Moments) Sane() bool {
	if m.N < 0 || m.N > 1<<60 || m.N == 0 && *m != (Moments{}) {
		return false
	}
	for _, x := range []float64{m.W, m.W2, m.Mean, m.M2} {
		if !(x >= 0 && x < MaxValue) {
			return false
		}
	}
	return true
}

// Decay multiplies the weight of everything so far by f, 0 < f ≤ 1.
func (m *Moments) Decay(f float64) {
	m.W *= f
	m.W2 *= f * f
	m.M2 *= f
}

// StdDev is the square root of the unbiased weighted sample variance,
// M2 ÷ (W − W2/W); 0 for fewer than two values.
func (m *Moments) StdDev() float64 {
	if m.N < 2 || m.W <= 0 {
		return 0
	}
	den := m.W - m.W2/m.W
	if den <= 0 || m.M2 <= 0 {
		return 0
	}
	return math.Sqrt(m.M2 / den)
}
