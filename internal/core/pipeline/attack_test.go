package pipeline_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// A task makes the witness of its lie itself: of its threads one runs only where no other task does, or many
// run at once. What it waits then caps no task.
func TestAttackAWaitOfItsOwnMaking(t *testing.T) {
	waits := func(f *framing, of func(works bool, x *sample.Extras)) {
		served := []detect.Served{{By: f.subject("/encode", sample.Batch, sample.RunQ).Task.Key, Time: 9, Fair: 0.5}}
		f.measured = func(sig sample.SignalName, works bool, m *pipeline.Measurement) {
			if sig != sample.RunQ {
				return
			}
			var x sample.Extras
			x.Set(sample.Wakeups, 1000)
			if m.Extras, m.Served = &x, []detect.Served{}; works {
				m.Served = served
			}
			m.Cost = 0.9
			x.Set(sample.WaitOther, 9)
			if !works {
				m.Cost = 0.01
				x.Set(sample.WaitOther, 0.1)
			}
			of(works, &x)
		}
	}
	for name, of := range map[string]func(works bool, x *sample.Extras){
		"a thread of low priority": func(works bool, x *sample.Extras) {
			x.Set(sample.WaitSelf, 0)
			if works {
				x.Set(sample.WaitNiced, 8)
			}
		},
		"many threads": func(works bool, x *sample.Extras) {
			x.Set(sample.WaitSelf, 0)
			if works {
				x.Set(sample.WaitSelf, 200)
			}
		},
	} {
		for seed := range uint64(3) {
			f := newFraming(t, detect.EvidenceMethod, seed, true)
			f.subject("/liar", sample.LatencySensitive, sample.RunQ).Spec.Mean = 0.01
			waits(f, of)
			f.play(120, sample.CPT, map[sample.SignalName]float64{sample.RunQ: 1})
			if why := f.notDone[sample.CPT]; f.capped > 0 || !strings.Contains(why, "no signal that the machine measures (cpi, runq, probe) agrees") {
				t.Errorf("%s, seed %d: %d caps for what /liar reports; %s", name, seed, f.capped, why)
			}
		}
	}
	// The same wait that is not its own making is believed.
	f := newFraming(t, detect.EvidenceMethod, 1, true)
	f.subject("/liar", sample.LatencySensitive, sample.RunQ).Spec.Mean = 0.01
	waits(f, func(_ bool, x *sample.Extras) { x.Set(sample.WaitSelf, 0) })
	if f.play(60, sample.CPT, map[sample.SignalName]float64{sample.RunQ: 1}); f.capped == 0 {
		t.Errorf("an honest wait: no caps; %s", f.last)
	}
}

// The canary of a cache is a witness to all tasks that can use it. If it names another task than the
// report does, it does not agree, also if another witness says nothing.
func TestAttackACanaryThatNamesAnother(t *testing.T) {
	policy := plan.Paper()
	policy.Mode = plan.On
	p := plan.New("m", detect.Quell, policy)
	canary := sample.Task{Key: sample.TaskKey{Inode: 9}, Name: "(cache 0)", Class: sample.Batch}
	liar := sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/liar", Class: sample.LatencySensitive}
	guilty := sample.Task{Key: sample.TaskKey{Inode: 2}, Name: "/guilty", Class: sample.Batch}
	framed := sample.Task{Key: sample.TaskKey{Inode: 3}, Name: "/framed", Class: sample.Batch}
	normal := &spec.Spec{State: spec.Ready, Mean: 1, StdDev: 0.1}
	finding := func(sig sample.SignalName, victim, s sample.Task) detect.Finding {
		return detect.Finding{Signal: sig, Victim: victim, Spec: *normal, Result: detect.Result{Kind: detect.Neighbour, Cost: 2, Threshold: 1.2, Antagonists: 1,
			Suspects: []detect.Suspect{{Task: s, Grounds: detect.Grounds{Level: detect.Proven, Basis: detect.ByStatistics, Probability: 0.99}}}}}
	}
	outlier := detect.Verdict{Judged: true, Outlier: true}
	for n := range 4 {
		at := sample.Millis(60_000 * (n + 1))
		p.Interval(at, sample.CPT, at, []detect.Reading{{Task: &liar, Cost: 2, Spec: normal}}, []detect.Verdict{outlier})
		if n < 3 {
			p.Interval(at, sample.Probe, at, []detect.Reading{{Task: &liar, Cost: math.NaN()}, {Task: &canary, Cost: 2, Spec: normal}}, []detect.Verdict{{}, outlier})
		} else { // the newest witness has no incident
			p.Interval(at, sample.CPI, at, []detect.Reading{{Task: &liar, Cost: 2, Spec: normal}}, []detect.Verdict{outlier})
		}
	}
	const now = 240_000
	window := func(sample.TaskKey) []detect.Point { return nil }
	p.Finding(now, finding(sample.Probe, canary, guilty), window)
	inc, _ := p.Incident(p.Finding(now, finding(sample.CPT, liar, framed), window))
	if len(inc.Rounds) != 0 || !strings.Contains(inc.NotDone, "its witness, probe, names /guilty") {
		t.Errorf("%+v, not done: %q", inc.Rounds, inc.NotDone)
	}
	if inc, _ = p.Incident(p.Finding(now, finding(sample.CPT, liar, guilty), window)); len(inc.Rounds) != 1 {
		t.Errorf("the canary names the same task, not done: %q", inc.NotDone)
	}
}

// An antagonist reports a cost of its own that rises with its usage, as if it were slowed down itself and
// did no more work. It is accused nevertheless.
func TestAttackACostThatExcuses(t *testing.T) {
	for _, own := range []sample.SignalName{sample.CPT, sample.CPS} {
		for _, reported := range []float64{1, 60} {
			f, accused := newFraming(t, detect.EvidenceMethod, 3, true), 0
			for minute := range 60 {
				at, works := sample.Millis(minute+1)*60_000, minute > 30 && minute%10 < 5
				cost := func(mean float64) float64 { return mean * (1 + 0.02*f.r.NormFloat64()) }
				usage, victim, excuse := 0.05, cost(1), cost(1)
				if works {
					usage, victim, excuse = 3, cost(2), cost(reported)
				}
				for _, name := range []sample.SignalName{sample.CPI, sample.CPT, sample.CPS} {
					sig, _ := sample.LookupSignal(name)
					web, encode := pipeline.Measurement{CPU: 1, Cost: math.NaN()}, pipeline.Measurement{CPU: usage, Cost: math.NaN()}
					if name != sample.CPS {
						web.Cost = victim
					}
					if name == own {
						encode.Cost = excuse
					}
					iv := f.p.Begin(sig, at, 10*time.Second)
					iv.Add(f.subject("/web", sample.LatencySensitive, name), web)
					iv.Add(f.subject("/encode", sample.Batch, name), encode)
					iv.Add(f.subject("/log", sample.Batch, name), pipeline.Measurement{CPU: 0.5 + 0.1*f.r.Float64(), Cost: math.NaN()})
					iv.End(at)
				}
				f.p.Advance(at, at+60_000)
				for r, more := f.p.Ready(); more; r, more = f.p.Ready() {
					for i := range r.Findings {
						if a := &r.Findings[i]; a.Antagonists > 0 && a.Suspects[0].Name == "/encode" {
							accused++
						}
					}
				}
			}
			if accused == 0 {
				t.Errorf("%s, %g times as high: /encode is not accused", own, reported)
			}
		}
	}
}
