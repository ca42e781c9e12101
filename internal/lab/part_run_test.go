package lab

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/role"
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

// The executions of a measured command in its warm-up are not in its figure.
func TestExecutionsOfTheWarmUp(t *testing.T) {
	begin := time.Unix(0, 0)
	for name, c := range map[string]struct {
		ends       []float64 // s; each begins when the one before ends
		window     float64
		iterations int
		warmup     int
		other      bool // it is not measured
		want       int
	}{
		"as long as the warm-up":        {ends: []float64{5.05, 10.1, 15.1}, window: 5, want: 1},
		"shorter ones":                  {ends: []float64{3, 6, 9}, window: 5, want: 2},
		"most of it is in the window":   {ends: []float64{5}, window: 2, want: 0},
		"no warm-up":                    {ends: []float64{3, 6}, window: 0.001, want: 0},
		"the only one":                  {ends: []float64{3}, window: 2, iterations: 1, want: 0},
		"as many as the study says":     {ends: []float64{3, 6, 9}, window: 3.1, iterations: 2, warmup: 1, want: 1},
		"more than was warm-up in time": {ends: []float64{3, 6, 9}, window: 0.001, warmup: 2, want: 2},
		"another role's":                {ends: []float64{3, 6, 9}, window: 5, other: true, want: 0},
	} {
		a := &partRun{part: &study.Part{Measure: !c.other, Workload: study.Workload{Iterations: c.iterations, Warmup: study.Warmup{Iterations: c.warmup}}}, out: &output{}}
		at := func(s float64) time.Time { return begin.Add(time.Duration(s * 1e9)) }
		from := 0.0
		for _, to := range c.ends {
			a.out.iterations = append(a.out.iterations, iteration{at(from), at(to), 1})
			from = to
		}
		if got := a.early(at(c.window)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A disk that is full for some seconds of a run makes a gap in the copy of the output, and none in the figures.
func TestIterationsOnAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	out := &output{copy: full, clock: func(ns int64) time.Time { return time.Unix(0, ns) }}
	out.line(role.IterationLine + "1 2 1")
	if n := out.count(); n != 1 {
		t.Errorf("%d iterations, want 1", n)
	}
}

// A command that writes more than is kept for its parser has no figure, unless the executions that
// count are in what was kept.
func TestOutputThatIsNotKept(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out := &output{copy: null, clock: func(ns int64) time.Time { return time.Unix(0, ns) }}
	const executions = 4
	for n := range executions {
		out.line(strings.Repeat("x", mostOutput/2))
		out.line(fmt.Sprintf("%s%d %d 1", role.IterationLine, n, n+1))
	}
	for name, c := range map[string]struct {
		measured          bool
		iterations, early int
		want              bool
	}{
		"all count":                {measured: true, want: true},
		"the first two count":      {measured: true, iterations: 2},
		"the second and the third": {measured: true, iterations: 2, early: 1, want: true},
		"another role's":           {},
	} {
		a := &partRun{part: &study.Part{Measure: c.measured, Workload: study.Workload{Iterations: c.iterations}}, out: out}
		if err := a.unread(c.early); (err != nil) != c.want || err != nil && !strings.Contains(err.Error(), "only 2 of its 4 executions") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
