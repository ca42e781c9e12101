package detect

import (
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// TestASmallTasksUsageIsItsWork: the host is slower now and then, so every task needs more
// CPU time for the same work. A suspect that does too little to be judged is not named for
// that if its own cost is counted, by the same signal or by another one; without its own
// cost it is named.
func TestASmallTasksUsageIsItsWork(t *testing.T) {
	for _, c := range []struct {
		name        string
		same, other bool // its own cost is counted by the victim's signal; by another one
		named       bool
	}{{"same signal", true, false, false}, {"another signal", false, true, false}, {"not counted", false, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			d, rng := New(evident(t)), rand.New(rand.NewPCG(5, 7))
			named := false
			for m := range 100 {
				slow := pick(m >= 30 && m%12 < 5, 1.6, 1.0)
				at := sample.Millis(m+1) * minute
				noise := func() float64 { return 1 + 0.02*rng.NormFloat64() }
				small := suspect(2, 0.2*slow*noise())
				counted := small
				counted.Cost = 0.01 * slow * noise()
				v := victim(1, slow*noise()).with(func(r *Reading) { r.Spec = ready(1, 0.1) })
				if c.other {
					d.Observe(signal(t, sample.CPS), at, []Reading{counted})
				}
				if c.same {
					small = counted
				}
				d.Observe(signal(t, sample.CPT), at, []Reading{v, small})
				for _, f := range drain(d, at) {
					named = named || f.Antagonists > 0
				}
			}
			if named != c.named {
				t.Errorf("named: %v, want %v", named, c.named)
			}
		})
	}
}
