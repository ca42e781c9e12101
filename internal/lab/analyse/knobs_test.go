package analyse

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// A part's solo runs under another setting of the machine are a separate baseline: with
// prefetching off all of it is slower, and that is no degradation.
func TestSettingsAreComparedWithTheirOwn(t *testing.T) {
	var runs []result.Run
	add := func(kind study.CellKind, setting string, seconds, misses float64) {
		p := study.Part{Role: "vm", Measure: true, Workload: study.Workload{Name: "mcf", Metric: study.Metric{Better: "lower"}}}
		parts := []study.Part{p}
		if kind == study.Main {
			parts = append(parts, study.Part{Role: "other"})
		}
		c := study.Cell{Kind: kind, Parts: parts, Levels: []study.Level{{Factor: "pf", Value: setting}}, Knobs: map[string]string{"prefetching": setting}}
		var its []result.Iteration
		for k := range 4 {
			its = append(its, result.Iteration{From: time.Duration(k) * time.Minute, To: time.Duration(k)*time.Minute + time.Duration(seconds*(1+0.001*float64(k))*1e9), Units: 1})
		}
		runs = append(runs, result.Run{Cell: c, CellKey: c.Key(), N: len(runs), Verdict: result.Valid, Window: result.Window{To: time.Hour},
			Parts: []result.Part{{Name: "vm", Role: "vm", Iterations: its, Events: map[string]float64{"misses": misses}}}})
	}
	for range 2 {
		add(study.Solo, "on", 10, 10)
		add(study.Main, "on", 12, 12)
		add(study.Solo, "off", 20, 30)
		add(study.Main, "off", 22, 25)
	}
	want := map[string]float64{"on": 20, "off": 10}
	for _, d := range Degradations(runs, 1) {
		if s := d.Levels[0].Value; !near(d.Percent.Value, want[s], 1e-6) {
			t.Errorf("%s: %g %%, want %g", s, d.Percent.Value, want[s])
		}
		delete(want, d.Levels[0].Value)
	}
	if len(want) > 0 {
		t.Errorf("no degradation of %v", want)
	}
	all := Events(runs, 1)
	if len(all) != 2 {
		t.Fatalf("%d matrices of two settings", len(all))
	}
	for i, c := range map[int]float64{0: 1, 1: -1} {
		if got := all[i]; got.N != 4 || !near(got.Pooled.At(0, 1), c, 1e-6) || got.Levels[0] != (study.Level{Factor: "prefetching", Value: []string{"on", "off"}[i]}) {
			t.Errorf("setting %d: %v, %v of %d", i, got.Levels, got.Pooled.At(0, 1), got.N)
		}
	}
}
