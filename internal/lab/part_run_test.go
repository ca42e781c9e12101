package lab

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/study"
)

// A part that the lab itself keeps stopped because it has used more than its target is
// not stalled. A part that is below its target and gets no CPU time is.
func TestHeldPartsStandStillWhenTheyHaveHadEnough(t *testing.T) {
	const period = 107 * time.Millisecond
	begin := time.Unix(0, 0)
	periods := func(target float64, used ...time.Duration) []load.Period {
		var all []load.Period
		for i, u := range used {
			all = append(all, load.Period{At: begin.Add(time.Duration(i) * period), Target: target, Used: u, Length: period})
		}
		return all
	}
	for name, c := range map[string]struct {
		periods []load.Period
		want    bool
	}{
		"no period yet":                   {nil, false},
		"a tick too many at 3 %":          {periods(0.03, 25*time.Millisecond, 0, 0, 0, 0, 0, 0), true},
		"that is paid back":               {periods(0.03, 25*time.Millisecond, 0, 0, 0, 0, 0, 0, 0), false},
		"frozen from outside":             {periods(0.5, 54*time.Millisecond, 53*time.Millisecond, 0, 0), false},
		"too much of the level before":    {append(periods(0.99, 500*time.Millisecond), periods(0.03, 0, 0)...), false},
		"exactly what it is to have":      {periods(1, period, period), true},
		"an hour ago it had a great deal": {append([]load.Period{{At: begin.Add(-time.Hour), Target: 0.03, Used: time.Minute, Length: period}}, periods(0.03, 0, 0)...), false},
	} {
		a := &partRun{part: &study.Part{Environment: study.Environment{CPUs: 1}}, periods: c.periods}
		if got := a.aheadOfTarget(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
