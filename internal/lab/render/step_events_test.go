package render

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// 600 misses in the 3 s between a step's cuts are 200 a second; a step without readings and a
// run that is not valid have no row.
func TestStepEvents(t *testing.T) {
	step := result.Step{Step: study.Step{Target: 0.25, From: 10 * time.Second, To: 15 * time.Second, Settle: time.Second, Trail: time.Second}}
	run := result.Run{Verdict: result.Valid, Cell: study.Cell{Kind: study.Main}, Steps: []result.Step{step, step},
		Parts: []result.Part{{Name: "fg", StepEvents: []map[string]float64{{"l2-misses": 600, "cycles": 3}, {}}}}}
	bad := run
	bad.Verdict = result.Invalid
	got := (&Report{Runs: []result.Run{run, bad}}).stepEvents().Table.Rows
	want := [][]page.Cell{page.Row("all", "fg", "cycles", "1", "25 %", "1"), page.Row("all", "fg", "l2-misses", "1", "25 %", "200")}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
