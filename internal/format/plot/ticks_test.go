package plot

import (
	"math"
	"testing"
)

// An axis has a few marks, ascending, whatever its values: also if these differ by rounding only, by the
// least number that there is, or by more than the greatest.
func TestTicksOfAnyValues(t *testing.T) {
	sum := 0.1
	for range 2 {
		sum += 0.1 // not 0.3
	}
	for _, x := range [][2]float64{
		{0, 1}, {3, 3}, {0, 0}, {1, math.Nextafter(1, 2)}, {0.3, sum}, {-7, math.Nextafter(-7, 0)}, {1e16, 1e16 + 2}, {1e9, 1e9 + 3},
		{0, math.SmallestNonzeroFloat64}, {-math.MaxFloat64, math.MaxFloat64}, {1e305, math.MaxFloat64}, {-math.MaxFloat64, -1e305},
	} {
		s := empty()
		s.over(x[0], x[1])
		s.from, s.to = 0, 100
		at := s.ticks(5)
		if len(at) < 2 || len(at) > 12 {
			t.Errorf("%g: %d marks", x, len(at))
			continue
		}
		for i, v := range at {
			if !Finite(v, s.at(v)) || i > 0 && !(v > at[i-1]) {
				t.Errorf("%g: marks at %g", x, at)
				break
			}
		}
		if p := s.at(x[0]); !Finite(p) {
			t.Errorf("%g: the first is drawn at %g", x, p)
		}
	}
}

// Marks that differ have labels that do, also far from 0.
func TestLabelsOfMarksDiffer(t *testing.T) {
	for _, x := range [][2]float64{{0, 1}, {0, 5e5}, {1e5, 100_100}, {1_795_617_000, 1_795_620_600}, {0.5, 0.50004}, {-2e6, -1_999_990}} {
		s := empty()
		s.over(x[0], x[1])
		at, seen := s.ticks(5), map[string]bool{}
		for _, v := range at {
			if label := tick(v, at[1]-at[0]); seen[label] {
				t.Errorf("%g: %q twice, at %g", x, label, at)
			} else {
				seen[label] = true
			}
		}
	}
	if got := tick(1.2e6, 2e5); got != "1.2e+06" {
		t.Errorf("a short one is %q", got)
	}
}
