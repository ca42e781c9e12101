package analyse

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// An analysis without a result says what it needs.
func TestInsufficientSaysWhatIsNeeded(t *testing.T) {
	const text = `
version: 1
study: t
environments: {ve: {driver: cgroup, cpus: 1}}
workloads: {w: {builtin: burn}}
roles:
  fg: {workload: w, environment: ve, measure: true}
  bg: {workload: w, environment: ve, load: {target: $load}}
factors: {load: %s}
controls: {solo: false}
run: {for: 1s}
analysis: [{kind: %s}]
`
	stairs := func(to, direction string) string {
		return fmt.Sprintf("{staircase: {from: 10%%, to: %s, step: 10%%, hold: 2s, direction: %s}}", to, direction)
	}
	for _, c := range []struct {
		load, kind string
		valid      bool
		want       string
	}{
		{stairs("20%", "up-down"), "interference", true, "2 levels in a half"},
		{stairs("50%", "up"), "interference", true, "direction: up-down"},
		{`["10%"]`, "interference", true, "no staircase"},
		{`["10%"]`, "throughput", true, "no staircase"},
		{`["10%"]`, "degradation", true, "controls, solo"},
		{`["10%"]`, "correlation", true, "observe.events"},
		{`["10%"]`, "migration", true, "observe, placement"},
		{`["10%"]`, "signal-validity", true, "observe.signals"},
		{stairs("50%", "up-down"), "interference", false, "no valid run of a main cell"},
	} {
		s, err := study.Parse("t.yaml", []byte(fmt.Sprintf(text, c.load, c.kind)), study.Known{Builtins: []string{"burn"}})
		if err != nil {
			t.Fatal(err)
		}
		var runs []result.Run
		for _, p := range s.Plan() {
			r := result.Run{Cell: p.Cell, CellKey: p.Cell.Key(), Verdict: result.Valid}
			if !c.valid {
				r.Verdict = result.Invalid
			}
			runs = append(runs, r)
		}
		got := Compute(s, runs).Insufficient[c.kind]
		if !strings.Contains(got, c.want) {
			t.Errorf("%s of %s: %q, want %q", c.kind, c.load, got, c.want)
		}
	}
}
