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

type unmetered struct{ Observer }

func (unmetered) Energy(result.Window) (float64, string) { return 0, "" }

func TestEnergyOfWindowAndSteps(t *testing.T) {
	s := &execution{run: &result.Run{Window: result.Window{From: time.Second, To: 11 * time.Second},
		Steps: []result.Step{{Step: study.Step{From: time.Second, To: 6 * time.Second, Settle: time.Second, Trail: 2 * time.Second}}}},
		actors: []*partRun{{part: &study.Part{Measure: true}}, {part: &study.Part{}}}, watchers: []watcher{{Observer: metered{}, parts: []int{0}}, {Observer: unmetered{}, parts: []int{1}}}}
	s.energy()
	if s.run.Joules != 20 || s.run.Energy != "meter" || s.run.Steps[0].Joules != 4 {
		t.Errorf("%v J by %q, a step %v J; want 20, meter, 4", s.run.Joules, s.run.Energy, s.run.Steps[0].Joules)
	}
	// A second machine with a measured part adds its energy.
	s.watchers = append(s.watchers, watcher{Observer: metered{}, host: "h1", parts: []int{0}})
	s.energy()
	if s.run.Joules != 40 || s.run.Energy != "meter; host h1: meter" {
		t.Errorf("%v J by %q of two machines", s.run.Joules, s.run.Energy)
	}
	// If it has no source, the energy of the measured parts is not known.
	s.watchers[1].parts = []int{0}
	s.energy()
	if s.run.Joules != 0 || s.run.Energy != "" {
		t.Errorf("%v J by %q, one machine has no source", s.run.Joules, s.run.Energy)
	}
}
