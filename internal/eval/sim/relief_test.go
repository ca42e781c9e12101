package sim

import (
	"path"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
)

// TestRelief: caps take CPU time and help, without caps both are zero; a feedback cap takes
// much less and helps as many victims.
func TestRelief(t *testing.T) {
	p := simulator()
	var got [3]Relief
	for i := range got {
		st := setup(t, detect.Quell, 120)
		switch i {
		case 0:
			st.Policy.Mode = plan.Advise
		case 2:
			st.Policy.Feedback = true
		}
		for _, s := range Scenarios() {
			if ok, _ := path.Match("*/bursts/*/plain", s.Name); !ok || s.Half != Tuning {
				continue
			}
			for seed := range uint64(4) {
				c := p.Run(&s, seed, st)
				got[i].Add(&c.Relief)
				if s.Channel == Net || s.Channel == IO {
					if c.Relief.Taken != 0 {
						t.Errorf("%s: %v s of what is not CPU time", s.Name, c.Relief.Taken)
					}
				}
			}
		}
	}
	t.Logf("none %+v, fixed %+v, feedback %+v", got[0], got[1], got[2])
	if got[0] != (Relief{}) {
		t.Errorf("without caps: %+v", got[0])
	}
	fixed, feedback := got[1], got[2]
	if fixed.Victims < 5 || fixed.Relieved < fixed.Victims*9/10 || fixed.Well > fixed.Held || fixed.Taken <= 0 {
		t.Errorf("fixed: %+v", fixed)
	}
	if feedback.Relieved < feedback.Victims*8/10 || feedback.Taken > 0.75*fixed.Taken {
		t.Errorf("feedback: %+v", feedback)
	}
}
