package stat

import (
	"math"
	"testing"
)

// TestExactIntervals compares with published values: the rule of three (1 − 0.05^(1/n)
// and −ln 0.05), Clopper and Pearson's 8 of 10, Garwood's 3 events.
func TestExactIntervals(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"all of 100", ShareLowerBound(100, 100, 0.95), math.Pow(0.05, 0.01)},
		{"8 of 10", ShareLowerBound(8, 10, 0.95), 0.49310},
		{"1 of 20", ShareLowerBound(1, 20, 0.95), 1 - math.Pow(0.95, 1.0/20)},
		{"none", ShareLowerBound(0, 10, 0.95), 0},
		{"nothing seen", ShareLowerBound(0, 0, 0.95), 0},
		{"no event", RateUpperBound(0, 0.95), -math.Log(0.05)},
		{"3 events", RateUpperBound(3, 0.95), 7.75366},
		{"100 events", RateUpperBound(100, 0.95), 118.0788},
	} {
		if math.Abs(c.got-c.want) > 1e-4*max(1, c.want) {
			t.Errorf("%s: %.5f, want %.5f", c.name, c.got, c.want)
		}
	}
}
