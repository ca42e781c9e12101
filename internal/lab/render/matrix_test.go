package render

import (
	"slices"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// An event that has a column was not counted in some runs; one without a column in none.
func TestEventsThatWereNotCounted(t *testing.T) {
	var runs []result.Run
	for i := range 3 {
		p := result.Part{Name: "fg", Role: "fg", Iterations: []result.Iteration{{To: time.Duration(i+1) * time.Second, Units: 1}},
			Missing: map[string]string{"l2": "no such event"}}
		if i < 2 {
			p.Events = map[string]float64{"llc": float64(i + 1)}
		} else {
			p.Missing["llc"] = "select fewer events"
		}
		runs = append(runs, result.Run{Cell: study.Cell{Kind: study.Main, Parts: []study.Part{{Role: "fg", Measure: true, Workload: study.Workload{Metric: study.Metric{Better: "lower"}}}}},
			Verdict: result.Valid, Window: result.Window{To: time.Minute}, Parts: []result.Part{p}})
	}
	r := &Report{Study: &study.Study{}, Results: analyse.Results{Correlations: analyse.Events(runs, 1)}}
	notes := r.correlations(nil).Notes
	for _, want := range []string{"l2 was not counted: no such event.", "llc was not counted in some runs: select fewer events."} {
		if !slices.Contains(notes, want) {
			t.Errorf("%q lacks %q", notes, want)
		}
	}
}
