package analyse

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
)

// signalled returns runs of a task whose iterations take unit seconds, except one in
// ten, which takes tail times as long, with a counted signal.
func signalled(n int, kind func(i int) study.CellKind, cell func(i int) string, unit, tail, cost func(i int) float64) []result.Run {
	var runs []result.Run
	for i := range n {
		p := study.Part{Role: "task", Measure: true, Workload: study.Workload{Name: "w", Metric: study.Metric{Better: "higher"}}}
		c := study.Cell{Kind: kind(i), Parts: []study.Part{p}, Levels: []study.Level{{Factor: "k", Value: cell(i)}}}
		var its []result.Iteration
		at := time.Duration(0)
		for k := range 100 {
			d := unit(i)
			if k%10 == 9 {
				d *= tail(i)
			}
			to := at + time.Duration(d*1e9)
			its = append(its, result.Iteration{From: at, To: to, Units: 1})
			at = to
		}
		runs = append(runs, result.Run{Cell: c, CellKey: c.Key(), N: i, Verdict: result.Valid, Window: result.Window{To: at},
			Start: time.Unix(0, 0).Add(time.Duration(i) * time.Hour / 10),
			Parts: []result.Part{{Name: "task", Role: "task", Iterations: its, Events: map[string]float64{"signal.cpi": cost(i), "cycles": 1}}}})
	}
	return runs
}

func TestValidities(t *testing.T) {
	always := func(k study.CellKind) func(int) study.CellKind { return func(int) study.CellKind { return k } }
	flat := func(v float64) func(int) float64 { return func(int) float64 { return v } }
	each := func(i int) string { return fmt.Sprint(i) }
	// The signal follows the time per unit of work; the tail is independent.
	slow := func(i int) float64 { return 1 + float64(i%7)/7 }
	way := func(i int) float64 { return []float64{4, 2, 3}[i%3] }
	v := Validities(signalled(21, always(study.Main), each, slow, way, func(i int) float64 { return 2 * slow(i) * (1 + 0.1*way(i)) }), 1)
	if len(v) != 1 || v[0].Signal != "cpi" || v[0].N != 21 {
		t.Fatalf("%+v", v)
	}
	if one := v[0]; !(one.Pearson.Value > 0.9 && one.Pearson.Low < one.Pearson.Value && one.Pearson.High > one.Pearson.Value && one.P < 0.01) {
		t.Errorf("with the time of a unit of work: %+v", one)
	}
	if one := v[0]; !(one.Tail.Value > 0.3 && one.Tail.Value < one.Pearson.Value) {
		t.Errorf("with the tail: %+v", one.Tail)
	}
	if !math.IsNaN(v[0].Drift.Value) {
		t.Errorf("a drift of cells that were run once: %+v", v[0].Drift)
	}
	// The signal follows the tail only.
	v = Validities(signalled(12, always(study.Main), each, flat(1), way, func(i int) float64 { return way(i) }), 1)
	if one := v[0]; !near(one.Tail.Value, 1, 1e-6) {
		t.Errorf("the tail alone: %+v", one)
	}
}

// The signal grows by 2 % per hour in cells of several levels, among them the control's
// run of one of them, while the application's figures stay constant.
func TestValidityDrift(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	kind := func(i int) study.CellKind {
		if i%8 == 7 {
			return study.Sentinel // of level 0
		}
		return study.Main
	}
	level := func(i int) int {
		if i%8 == 7 {
			return 0
		}
		return i % 4
	}
	noise := make([]float64, 200)
	for i := range noise {
		noise[i] = 1 + 0.005*r.NormFloat64()
	}
	runs := signalled(200, kind, func(i int) string { return fmt.Sprint(level(i)) }, func(i int) float64 { return float64(1 + level(i)) }, func(int) float64 { return 1 },
		func(i int) float64 { return float64(1+level(i)) * math.Exp(0.02*float64(i)/10) * noise[i] })
	v := Validities(runs, 1)[0]
	if !(v.Drift.Low < 2 && 2 < v.Drift.High && v.Drift.High-v.Drift.Low < 0.1) {
		t.Errorf("drift %+v, want about 2 %%/h", v.Drift)
	}
	if !near(v.AppDrift.Value, 0, 1e-6) {
		t.Errorf("the application's %+v, want 0", v.AppDrift)
	}
	// Two runs in direct sequence give no drift per hour.
	two := signalled(2, func(int) study.CellKind { return study.AA }, func(int) string { return "0" }, func(int) float64 { return 1 }, func(int) float64 { return 1 }, func(i int) float64 { return 1 + float64(i)/10 })
	if v := Validities(two, 1)[0]; !math.IsNaN(v.Drift.Value) {
		t.Errorf("a drift of two runs 6 minutes apart: %+v", v.Drift)
	}
}

// On a machine that becomes slower by 2 % an hour every fourth run is a sentinel; the other cells are run once.
func TestDriftBySentinels(t *testing.T) {
	kind := func(i int) study.CellKind {
		if i%4 == 3 {
			return study.Sentinel
		}
		return study.Main
	}
	cell := func(i int) string {
		if i%4 == 3 {
			return "0"
		}
		return fmt.Sprint(i)
	}
	one := func(int) float64 { return 1 }
	slower := func(i int) float64 { return math.Exp(0.02 * float64(i) / 10) }
	if d := Compute(&study.Study{}, signalled(40, kind, cell, slower, one, one)).Drift; d == nil || !near(d.Value, 2, 1e-3) || !(d.High-d.Low < 0.1) {
		t.Errorf("%+v, want 2 %%/h", d)
	}
	if d := Compute(&study.Study{}, signalled(3, kind, cell, slower, one, one)).Drift; d != nil {
		t.Errorf("a drift of cells that were run once: %+v", d)
	}
}

// The figures of a web server's clients are attributed to the server: its signals
// follow the latencies of their requests, and not the number of answers.
func TestValidityOfAWebServer(t *testing.T) {
	one := func(int) float64 { return 1 }
	runs := signalled(14, func(int) study.CellKind { return study.Main }, func(i int) string { return fmt.Sprint(i) }, one, one, func(i int) float64 { return float64(i % 5) })
	for i := range runs {
		r := &runs[i]
		latency := 0.001 * float64(1+i%4)
		r.Cell.Parts[0].Asks, r.Cell.Parts[0].Workload.Builtin = "10.77.2.1", study.HTTPClient
		r.Cell.Parts = append(r.Cell.Parts, study.Part{Role: "other", Address: "10.77.3.1/16"}, study.Part{Role: "web", Address: "10.77.2.1/16"})
		r.Parts[0].Values = map[string]float64{role.HTTPLatency: latency, role.HTTPP95: 1 / latency}
		r.Parts = append(r.Parts, result.Part{Name: "other", Role: "other", Events: map[string]float64{"signal.net": 1}},
			result.Part{Name: "web", Role: "web", Events: map[string]float64{"signal.net": 2 * latency}})
		if i >= 12 { // no answer: nothing to correlate with
			r.Parts[0].Values = map[string]float64{"http.errors": 7}
		}
	}
	v := Validities(runs, 1)
	if len(v) != 1 || v[0].Signal != "net" || v[0].Part != "web" || v[0].Workload != "w" || v[0].N != 12 {
		t.Fatalf("%+v", v)
	}
	if !near(v[0].Pearson.Value, 1, 1e-9) || !(v[0].Tail.Value < -0.8) {
		t.Errorf("with the latency %+v, with its 95th percentile %+v", v[0].Pearson, v[0].Tail)
	}
}
