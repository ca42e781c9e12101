package agent

import (
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// stats are the loop's counters.
type stats struct {
	ticks, late, intervals, analyses         uint64
	undoFailed                               uint64
	tickSeconds                              float64
	samples, notCounted, outliers, addFailed map[sample.SignalName]uint64
	sourceSeconds                            map[sample.SignalName]float64
	incidents, findings                      map[[2]string]uint64 // signal, kind
	outcomes, capsEnded                      map[string]uint64
	seen                                     map[string]int // rounds counted so far, of open incidents
}

func newStats() *stats {
	n := func() map[sample.SignalName]uint64 { return map[sample.SignalName]uint64{} }
	return &stats{samples: n(), notCounted: n(), outliers: n(), addFailed: n(),
		sourceSeconds: map[sample.SignalName]float64{}, incidents: map[[2]string]uint64{}, findings: map[[2]string]uint64{},
		outcomes: map[string]uint64{}, capsEnded: map[string]uint64{}, seen: map[string]int{}}
}

// incident counts an incident once, and each of its rounds when the round has ended. It
// reports whether the incident is new.
func (s *stats) incident(inc *plan.Incident) bool {
	counted, known := s.seen[inc.ID]
	if !known {
		s.incidents[[2]string{string(inc.Signal), inc.Kind.String()}]++
	}
	ended := 0
	for _, r := range inc.Rounds {
		if r.Ended != 0 {
			if ended++; ended > counted {
				s.outcomes[string(r.Outcome)]++
			}
		}
	}
	s.seen[inc.ID] = ended
	if inc.Closed != 0 {
		delete(s.seen, inc.ID)
	}
	return !known
}
