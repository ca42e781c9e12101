package evaluation

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// incidentOf has a spec of 1 ± 0.1 and one round from cost before to cost under.
func incidentOf(class sample.Class, correlation, before, under float64, outcome plan.Outcome) *incident.Record {
	return &incident.Record{Incident: plan.Incident{Victim: sample.Task{Class: class}, SpecMean: 1, SpecStdDev: 0.1, Accused: 1,
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Cost: before, Suspects: []detect.Suspect{{Correlation: correlation}}}},
		Rounds:   []*incident.Round{{Capped: plan.Capped{Correlation: correlation}, CostBefore: incident.Value(before), CostUnder: incident.Value(under), Samples: 4, Outcome: outcome}}}}
}

// TestFigures compares every figure with cases that are counted by hand.
func TestFigures(t *testing.T) {
	var e Evaluation
	e.Add(incidentOf(sample.LatencySensitive, 0.5, 2, 1, plan.TruePositive))       // 10 σ
	e.Add(incidentOf(sample.LatencySensitive, 0.4, 1.45, 1.16, plan.TruePositive)) // 4.5 σ
	e.Add(incidentOf(sample.LatencySensitive, 0.3, 1.25, 1.25, plan.Noise))        // 2.5 σ
	e.Add(incidentOf(sample.LatencySensitive, 0.2, 1.25, 1.5, plan.FalsePositive))
	e.Add(incidentOf(sample.Batch, 0.36, 3, 2.4, plan.TruePositive))
	quota := incidentOf(sample.LatencySensitive, 0.9, 2, 1, plan.TruePositive)
	quota.Kind = detect.OwnQuota // not caused by a neighbour
	e.Add(quota)
	trial := incidentOf(sample.LatencySensitive, 0.9, 2, 1, plan.TruePositive)
	trial.Accused, trial.Rounds[0].Trial = 0, true
	e.Add(trial)
	left := incidentOf(sample.LatencySensitive, 0.9, 2, 1, plan.SuspectExited)
	left.Rounds[0].CostUnder = incident.Value(math.NaN())
	e.Add(left)
	e.Days, e.Right, e.Accusations = 2, 3, 4
	r := e.Report()
	if r.Incidents != 7 || r.Identified.K != 6 || r.PerDay != 3 || r.Precision.Value != 0.75 {
		t.Errorf("%d incidents, %+v identified, %v a day, precision %+v", r.Incidents, r.Identified, r.PerDay, r.Precision)
	}
	if o := r.OutcomeRate[0]; o.Band != Production || o.TruePositive.K != 2 || o.TruePositive.N != 4 || o.FalsePositive.K != 1 || o.Noise.K != 1 || math.Abs(float64(o.Relative)-0.65) > 1e-12 {
		t.Errorf("production: %+v", o)
	}
	if o := r.OutcomeRate[1]; o.Band != NonProduction || o.TruePositive.K != 1 || o.TruePositive.N != 1 || math.Abs(float64(o.Relative)-0.8) > 1e-12 {
		t.Errorf("non-production: %+v", o)
	}
	for from, want := range map[float64][2]int{0: {2, 4}, 0.2: {2, 4}, 0.25: {2, 3}, 0.35: {2, 2}, 0.45: {1, 1}, 0.6: {0, 0}} {
		for _, x := range r.ByThreshold {
			if x.Band == Production && x.From == from && (x.TruePositive.K != want[0] || x.TruePositive.N != want[1]) {
				t.Errorf("from %v on: %+v", from, x.TruePositive)
			}
		}
	}
	for _, x := range r.BySigmas {
		want := map[float64][2]int{2: {0, 2}, 4: {1, 1}, 10: {1, 1}}[x.From]
		if x.Band == Production && (x.TruePositive.K != want[0] || x.TruePositive.N != want[1]) {
			t.Errorf("from %v σ on: %+v", x.From, x.TruePositive)
		}
	}
	for _, x := range r.ByDegraded {
		if x.Band == Production && x.From == 2 && (x.N != 1 || x.Relative != 0.5) {
			t.Errorf("twice as expensive: %+v", x)
		}
	}
	if q := r.Relative[0]; q.N != 4 || math.Abs(float64(q.Values[3])-0.9) > 1e-12 { // of 0.5, 0.8, 1, 1.2
		t.Errorf("relative cost: %+v", q)
	}
	if _, err := json.Marshal(&r); err != nil {
		t.Error(err)
	}
}

// TestLoad: the rank correlation is 1 if correlations follow load, and about 0 if they do
// not; quarters have equal numbers.
func TestLoad(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, follows := range []bool{true, false} {
		var e Evaluation
		for i := range 1000 {
			correlation := rng.Float64()
			if follows {
				correlation = float64(i)
			}
			inc := incidentOf(sample.LatencySensitive, correlation, 2, 1, plan.TruePositive)
			inc.Busy = math.Sqrt(float64(i + 1))
			e.Add(inc)
		}
		r := e.Report()
		if rank := float64(r.LoadRank); follows && math.Abs(rank-1) > 1e-9 || !follows && math.Abs(rank) > 0.1 {
			t.Errorf("follows %v: %v", follows, rank)
		}
		if len(r.Load) != 4 || r.Load[0].Identified.N != 250 || r.Load[3].To != math.Sqrt(1000) || r.Load[0].To >= r.Load[1].From {
			t.Errorf("%+v", r.Load)
		}
	}
}

// TestLoadIsNotKnown: agents of before did not report the load. Their incidents are in no quarter
// and no rank, and in all other figures; the report is valid JSON.
func TestLoadIsNotKnown(t *testing.T) {
	e := Evaluation{cluster: &Cluster{}}
	row := func(id, busy, correlation string) []json.RawMessage {
		var all []json.RawMessage
		for _, x := range []string{`"m"`, `"` + id + `"`, "1000", `"neighbour"`, `"latency-sensitive"`, `"web"`, `"hog"`, "true", correlation, "2", "1", busy, "null", "true"} {
			all = append(all, json.RawMessage(x))
		}
		return all
	}
	answer := [][]json.RawMessage{row("1", "4", "0.4"), row("2", "null", "0.5"), row("3", "6", "0.6"), row("4", "5", "0.5"), row("5", "null", "null"), row("6", "7", "null")}
	ask := func(_ context.Context, sql string, _, _ sample.Millis) ([][]json.RawMessage, error) {
		if strings.Contains(sql, "SEMI JOIN") {
			return answer, nil
		}
		return nil, nil
	}
	if err := e.readStates(&tables{t.Context(), ask, 0, 10_000, nil}); err != nil {
		t.Fatal(err)
	}
	r := e.Report()
	if r.Identified.K != 6 || math.Abs(float64(r.LoadRank)-1) > 1e-12 || len(r.Load) != 4 || r.Load[0].From != 4 || r.Load[3].To != 7 {
		t.Errorf("%+v identified, rank %v, load %+v", r.Identified, r.LoadRank, r.Load)
	}
	if last := r.Load[3]; last.Identified.K != 1 || !math.IsNaN(float64(last.Correlation)) || last.Degradation != 2 {
		t.Errorf("the highest load: %+v", last)
	}
	if _, err := json.Marshal(&r); err != nil {
		t.Error(err)
	}
	// The same of one machine's log, in which the load is left out.
	var one Evaluation
	for _, busy := range []float64{4, 0, 6} {
		inc := incidentOf(sample.LatencySensitive, 0.5, 2, 1, plan.TruePositive)
		inc.Busy, inc.CPUs = busy, 8
		one.Add(inc)
	}
	if r := one.Report(); r.Identified.K != 3 || len(r.Load) != 2 || r.Load[0].From != 4 || r.Utilisation.N != 2 {
		t.Errorf("%d identified, load %+v, utilisation %+v", r.Identified.K, r.Load, r.Utilisation)
	}
}

// TestNothing: without incidents there is a report too, and it is valid JSON.
func TestNothing(t *testing.T) {
	r := new(Evaluation).Report()
	if _, err := json.Marshal(&r); err != nil || r.Identified.N != 0 || r.Precision != nil || len(r.Load) != 0 {
		t.Error(err, r)
	}
}

// TestOffenders: the most frequent pair is first, with the effects of caps. Usage outside tasks is no job.
func TestOffenders(t *testing.T) {
	var e Evaluation
	for i, antagonist := range []sample.JobName{"encode", "scan", "encode"} {
		inc := incidentOf(sample.LatencySensitive, 0.5, 2, 1, plan.TruePositive)
		inc.Victim.Job, inc.Suspects[0].Job, inc.Rounds[0].Suspect.Job, inc.Antagonists = "web", antagonist, antagonist, 1
		if i == 2 {
			inc.Rounds[0].Outcome, inc.Rounds[0].CostUnder = plan.Noise, 2
		}
		e.Add(inc)
	}
	outside := incidentOf(sample.LatencySensitive, 0.5, 2, 1, plan.TruePositive)
	outside.Suspects[0].Task, outside.Antagonists, outside.Rounds = detect.Outside(), 1, nil
	e.Add(outside)
	all := e.Report().Offenders
	if len(all) != 2 || all[0].Antagonist != "encode" || all[0].Accused != 2 || all[0].Helped.K != 1 || all[0].Helped.N != 2 || all[0].Relative != 0.75 || all[1].Helped.K != 1 {
		t.Errorf("%+v", all)
	}
}

// TestWhatACapTookBackWasAccused: an incident whose antagonist was capped in vain counts as
// if it had ended with the accusation: with the best suspect's correlation, and as one of
// the pair's. The cost is that of the latest analysis.
func TestWhatACapTookBackWasAccused(t *testing.T) {
	inc := incidentOf(sample.LatencySensitive, 0.5, 2, 2, plan.Noise)
	decoy, other := inc.Suspects[0], inc.Suspects[0]
	decoy.Key.Inode, decoy.Job, decoy.Level = 7, "decoy", detect.Possible
	other.Key.Inode, other.Job, other.Correlation = 8, "other", 0.2
	inc.Analysed, inc.Victim.Job, inc.Rounds[0].Suspect, inc.Antagonists = 1, "web", decoy.Task, 0
	inc.Findings = []plan.Finding{{Suspect: decoy}}
	inc.Suspects = []detect.Suspect{other, decoy}
	inc.Latest = &plan.Analysis{Result: detect.Result{Kind: detect.Nobody, Cost: 3, Suspects: []detect.Suspect{other}}}
	var e Evaluation
	e.Add(inc)
	r := e.Report()
	if len(r.Offenders) != 1 || r.Offenders[0].Antagonist != "decoy" || r.Offenders[0].Accused != 1 {
		t.Errorf("offenders %+v", r.Offenders)
	}
	if f := e.found[0]; f.correlation != 0.5 || f.degradation != 3 || !f.identified {
		t.Errorf("found %+v", f)
	}
}
