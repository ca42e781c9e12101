package detect

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/sample"
)

// TestAccounts: a neighbour comes to a victim's CPU once and stays, half of the
// CPU each (the figures are those of a recorded nginx beside xz). Where all CPU
// time is accounted for and he is nearly all of what was used more, that is
// enough; where it is not so he would be tried, and nobody is accused.
func TestAccounts(t *testing.T) {
	const came, minutes = 30, 40
	type at struct {
		victim, cost, neighbour, bystander, outside float64
		uncounted                                   bool // what runs outside any task is not known
	}
	beside := at{0.49, 1.5, 0.49, 0.02, 1.1, false}
	for _, c := range []struct {
		name    string
		signal  sample.SignalName
		after   at
		accused bool
		tried   bool
	}{
		{"he is all that was used more", sample.RunQ, beside, true, false},
		{"what runs outside any task is not counted", sample.RunQ, at{0.49, 1.5, 0.49, 0.02, 0, true}, false, true},
		{"somebody else used more too", sample.RunQ, at{0.49, 1.5, 0.49, 0.3, 1.1, false}, false, true},
		{"so did what runs outside any task", sample.RunQ, at{0.49, 1.5, 0.49, 0.02, 1.5, false}, false, true},
		{"he used too little for so long a wait", sample.RunQ, at{0.9, 1.5, 0.2, 0.02, 1.1, false}, false, true},
		{"work that costs more is no time that others used", sample.CPI, beside, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := New(evident(t))
			rng := rand.New(rand.NewPCG(3, 4))
			noisy := func(x float64) float64 { return x * (1 + 0.04*rng.NormFloat64()) }
			var all []Finding
			calm := 0.08
			if c.signal == sample.CPI {
				calm = 0.2 // less cannot be
			}
			for m := range minutes {
				now := at{0.95, calm, 0.03, 0.02, 1.1, c.after.uncounted}
				if m >= came {
					now = c.after
				}
				v := victim(1, noisy(now.cost))
				v.CPU, v.Pressure, v.Spec = now.victim, now.victim, ready(calm, 0.03)
				row := []Reading{v, suspect(2, noisy(now.neighbour)), suspect(3, noisy(now.bystander))}
				if !now.uncounted {
					out := suspect(4, noisy(now.outside))
					other := Outside()
					out.Task = &other
					row = append(row, out)
				}
				end := sample.Millis(m+1) * minute
				d.Observe(signal(t, c.signal), end, row)
				all = append(all, drain(d, end)...)
			}
			if got := accused(all); slices.Contains(got, 2) != c.accused || len(got) > 1 {
				t.Errorf("tasks %v are accused", got)
			}
			if c.tried && len(asked(all)) == 0 {
				t.Error("nobody would even be tried, so this says nothing")
			}
		})
	}
}

// TestAccountsIsASwitch: without it, who came once is not accused.
func TestAccountsIsASwitch(t *testing.T) {
	for _, on := range []bool{true, false} {
		p := evident(t)
		p.Switches.Accounts = on
		d := New(p)
		var all []Finding
		for m := range 40 {
			cost, use := 0.08, 0.03
			if m >= 30 {
				cost, use = 1.5, 0.49
			}
			v := victim(1, cost*(1+0.01*float64(m%3)))
			v.CPU, v.Pressure, v.Spec = 1-use, 1-use, ready(0.08, 0.03)
			out := suspect(4, 1+0.01*float64(m%2))
			other := Outside()
			out.Task = &other
			end := sample.Millis(m+1) * minute
			d.Observe(signal(t, sample.RunQ), end, []Reading{v, suspect(2, use*(1+0.01*float64(m%5))), out})
			all = append(all, drain(d, end)...)
		}
		if got := len(accused(all)) > 0; got != on {
			t.Errorf("switch %t: accused %v", on, accused(all))
		}
	}
}
