package detect

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/sample"
)

// TestPresume: who came once and stayed is accused where nobody may be tried, if
// the paper's correlation says so too and nobody else fits as well.
func TestPresume(t *testing.T) {
	for _, c := range []struct {
		name    string
		presume bool
		cost    float64 // beside him; 1 without, threshold 1.2
		rival   bool    // another does the same at the same time
		accused bool
	}{
		{"the correlation says so too", true, 3, false, true},
		{"who may be tried is", false, 3, false, false},
		{"too mild for the correlation", true, 1.4, false, false},
		{"two that cannot be told apart", true, 3, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := paper(t, Evident)
			p.Switches.Presume = c.presume
			d := New(p)
			rng := rand.New(rand.NewPCG(5, 9))
			noisy := func(x float64) float64 { return x * (1 + 0.04*rng.NormFloat64()) }
			var all []Finding
			for m := range 40 {
				cost, use := 1.0, 0.1
				if m >= 30 {
					cost, use = c.cost, 2
				}
				v := victim(1, noisy(cost))
				v.Spec = ready(1, 0.1)
				other := 0.8
				if c.rival {
					other = use
				}
				end := sample.Millis(m+1) * minute
				d.Observe(signal(t, sample.CPI), end, []Reading{v, suspect(2, noisy(use)), suspect(3, noisy(other))})
				all = append(all, drain(d, end)...)
			}
			if got := accused(all); slices.Contains(got, 2) != c.accused || len(got) > 1 {
				t.Errorf("tasks %v are accused", got)
			}
			if !c.accused && len(asked(all)) == 0 {
				t.Error("nobody would even be tried, so this says nothing")
			}
		})
	}
}
