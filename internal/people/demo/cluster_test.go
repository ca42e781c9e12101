package demo

import (
	"math"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

func TestJudgeOfTheCluster(t *testing.T) {
	good := ClusterResult{Antagonist: "/m1/reports", Named: "/m1/reports", On: "m1", Outcome: plan.TruePositive}
	for want, change := range map[string]func(*ClusterResult){
		"left something behind":          func(r *ClusterResult) { r.LeftBehind = []string{"x"} },
		"an innocent: m2: /m2/logship":   func(r *ClusterResult) { r.Accused = []string{"m2: /m2/logship"} },
		"no task was capped: no anomaly": func(r *ClusterResult) { r.Named, r.Why = "", "no anomaly" },
		"capped the wrong task":          func(r *ClusterResult) { r.Named = "/m1/encode" },
		"did not recover":                func(r *ClusterResult) { r.Outcome = plan.Noise },
		"lost or stored twice":           func(r *ClusterResult) { r.Missing = 1 },
		"without the server":             func(*ClusterResult) {},
	} {
		r := good
		change(&r)
		if r.judge(); r.OK != (want == "without the server") || !strings.Contains(r.Verdict, want) {
			t.Errorf("%s: %v, %s", want, r.OK, r.Verdict)
		}
	}
}

// Which task was not capped, and what was missing: an anomaly, an accusation, or a cap.
func TestWhyNobodyWasCapped(t *testing.T) {
	var seen costStats
	nothing := incident.Value(math.NaN())
	for _, v := range []api.SignalView{{Cost: nothing, Limit: nothing}, {Cost: 0.1, Limit: 0.25}, {Cost: 0.1, Limit: 0.25}, {Cost: 0.3, Limit: 0.25, Outlier: true}, {Cost: 0.2, Limit: nothing}} {
		seen.look(&v)
	}
	victim := sample.Task{Name: "/m1/web"}
	quiet := incident.Record{Incident: plan.Incident{Victim: victim, Analysis: plan.Analysis{Reason: "no suspect's correlation reaches the threshold",
		Result: detect.Result{Kind: detect.Nobody, Pairs: 11, Suspects: []detect.Suspect{{Task: sample.Task{Name: "/m1/encode"}, Correlation: 0.21}}}}}}
	hard := incident.Record{Incident: plan.Incident{Victim: victim, NotDone: "enforcement is off",
		Analysis: plan.Analysis{Reason: "reports has correlation 0.50", Result: detect.Result{Kind: detect.Neighbour, Antagonists: 1, Pairs: 12,
			Suspects: []detect.Suspect{{Task: sample.Task{Name: "/m1/reports"}, Grounds: detect.Grounds{Level: detect.Likely}, Correlation: 0.5, Excluded: "latency-sensitive"}}}}}}
	other := incident.Record{Incident: plan.Incident{Victim: sample.Task{Name: "/m1/encode"}, Analysis: plan.Analysis{Result: detect.Result{Antagonists: 3}}}}
	const costs = "mean cost 0.2 s/CPU-s of 3 intervals, maximum 0.3; 1 of them over the threshold, 0.25"
	for _, c := range []struct {
		incidents []incident.Record
		seen      *costStats
		want      string
	}{
		{[]incident.Record{other}, &seen, "no anomaly of web: " + costs},
		{nil, &costStats{}, "no anomaly of web: its agent measured no cost"},
		{[]incident.Record{quiet}, &seen, "an incident of web (nobody), no suspect's correlation reaches the threshold; the first suspect of 11 intervals is encode, none; " + costs},
		{[]incident.Record{hard, quiet}, &seen, "an incident of web (neighbour), reports has correlation 0.50; enforcement is off; the first suspect of 12 intervals is reports, likely (latency-sensitive); " + costs},
	} {
		if got := whyNotCapped(c.incidents, victim.Name, c.seen); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
