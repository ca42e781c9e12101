package spec

import (
	"math"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Reference cycles and core cycles, or two CPU types: a cost means something else in
// each, so a mean over both is meaningless.
func TestWhatIsCountedOtherwiseHasASpecOfItsOwn(t *testing.T) {
	variant, platform, signal := key, key, key
	variant.Variant = "core-cycles"
	platform.Platform = "another"
	signal.Signal = sample.CPT
	h := NewHistory(OwnHistory())
	want := map[Key]float64{key: 1, variant: 2, platform: 3, signal: 4}
	for range 100 {
		for k, cost := range want {
			h.Add(k, task(1), 0, 1, cost, 0)
		}
	}
	again := NewHistory(OwnHistory())
	again.Restore(h.Records())
	for _, h := range []*History{h, again} {
		for k, mean := range want {
			if s, ok := h.Lookup(k, minute); !ok || s.Key != k || s.Samples != 100 || math.Abs(s.Mean-mean) > 1e-9 || s.StdDev > 1e-9 {
				t.Errorf("%+v: %d samples with mean %v ± %v, want 100 with %v ± 0", k, s.Samples, s.Mean, s.StdDev, mean)
			}
		}
	}
}
