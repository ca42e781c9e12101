package lab

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// metered is an observer of a machine that takes 2 W.
type metered struct{ Observer }

func (metered) Energy(w result.Window) (float64, string) {
	return 2 * (w.To - w.From).Seconds(), "meter"
}

func TestEnergyOfWindowAndSteps(t *testing.T) {
	s := &execution{run: &result.Run{Window: result.Window{From: time.Second, To: 11 * time.Second},
		Steps: []result.Step{{Step: study.Step{From: time.Second, To: 6 * time.Second, Settle: time.Second, Trail: 2 * time.Second}}}}, observer: metered{}}
	s.energy()
	if s.run.Joules != 20 || s.run.Energy != "meter" || s.run.Steps[0].Joules != 4 {
		t.Errorf("%v J by %q, a step %v J; want 20, meter, 4", s.run.Joules, s.run.Energy, s.run.Steps[0].Joules)
	}
}
