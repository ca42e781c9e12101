package render

import (
	"math"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Figures 3 to 5 and tables I and II: in the study's order, with the favoured server by
// name, and a curve for each case that has more than one rate.
func TestNetworkIO(t *testing.T) {
	about := func(v float64) analyse.Interval {
		return analyse.Interval{Value: v, Low: 0.9 * v, High: 1.1 * v, Level: 0.95, Method: "t over runs", N: 3}
	}
	point := func(name, rate, client string, offered, rps float64) analyse.NetPoint {
		return analyse.NetPoint{Case: name, Rate: rate, Client: client, Server: strings.Replace(client, "load", "vm", 1), File: "get-1", Offered: offered, Throughput: about(rps), NetIO: about(2048 * rps),
			CPU: about(0.5), Response: about(0.002), Switches: about(10), PerExec: about(2), Executions: about(5), Waiting: about(0.1), Blocked: about(0.4), Events: about(7), EventsAre: analyse.EventsWakeups, PagesAre: analyse.PagesPackets,
			P99: about(math.NaN()), Pages: about(3)}
	}
	share := func(part, file string, v float64) analyse.NetShare {
		return analyse.NetShare{Part: part, File: file, Rate: about(1000 * v), Share: about(v)}
	}
	r := &Report{Study: &study.Study{Name: "web", Analysis: []study.Analysis{{Kind: "net-io"}}, Factors: []study.Factor{
		{Name: "case", Sets: []study.Set{{Name: "(1)"}, {Name: "(1,1)"}, {Name: "(1,100)"}}}, {Name: "rate", Levels: []string{"max", "50%", "100%"}}}}}
	r.Results.NetIO = &analyse.NetIO{
		Bases: []analyse.NetBase{{File: "get-1", Rate: about(1000), NetIO: about(1024), Response: about(0.001), CPU: about(0.97), Bottleneck: analyse.BoundCPU}},
		Pairs: []analyse.NetPair{
			{Case: "(1,100)", Parts: []analyse.NetShare{share("load1", "get-1", 0.8), share("load2", "get-100", 0.7)}, Score: about(1.5), Favoured: "load1", Advantage: about(0.1), Fairness: 0.875, Slowdown: 1.3},
			{Case: "(1,1)", Parts: []analyse.NetShare{share("load1", "get-1", 0.5), share("load2", "get-1", 0.5)}, Score: about(1), Advantage: about(0)},
		},
		Points: []analyse.NetPoint{point("(1,1)", "100%", "load1", 1, 500), point("(1)", "max", "load1", 0, 1000), point("(1,1)", "50%", "load1", 0.5, 400), point("(1)", "50%", "load1", 0.5, 500)},
	}
	s := r.ordered().networkIO(nil)
	if len(s.Exhibits) != 3 {
		t.Fatalf("%d exhibits", len(s.Exhibits))
	}
	bases, pairs, points := tableText(s.Exhibits[0]), tableText(s.Exhibits[1]), tableText(s.Exhibits[2])
	if bases != "get-1|cpu|1000|[900, 1100]|1|1|97|\n" {
		t.Errorf("table I: %s", bases)
	}
	if !strings.HasPrefix(pairs, "(1,1)|1|") || !strings.Contains(pairs, "|get-1 (load1)|") || !strings.Contains(pairs, "|neither|") || len(s.Exhibits[1].Plots) != 1 {
		t.Errorf("figure 3: %s", pairs)
	}
	if lines := strings.Split(points, "\n"); len(lines) != 5 || !strings.HasPrefix(lines[0], "(1)|max|") || !strings.HasPrefix(lines[1], "(1)|50%|") || !strings.HasPrefix(lines[2], "(1,1)|50%|vm1|") {
		t.Errorf("table II:\n%s", points)
	}
	if len(s.Exhibits[2].Plots) != len(curves()) {
		t.Errorf("%d curves, want %d", len(s.Exhibits[2].Plots), len(curves()))
	}
	// A case with one rate has no curve.
	if legend := s.Exhibits[2].Plots[0].Legend; len(legend) != 1 || legend[0].Text != "(1,1) vm1" {
		t.Errorf("curves of %+v", legend)
	}
	if !strings.Contains(strings.Join(s.Notes, " "), "proxy") {
		t.Errorf("proxies are not named: %q", s.Notes)
	}
	names := map[string]bool{}
	for _, v := range Values(&r.Results) {
		if names[v.Name()] {
			t.Errorf("two values are %s", v.Name())
		}
		names[v.Name()] = true
	}
	if !names["net-io score (1,100)"] {
		t.Errorf("no score among %d values", len(names))
	}
	if s := (&Report{Study: r.Study}).networkIO(nil); len(s.Exhibits) != 0 {
		t.Error("exhibits of nothing")
	}
}
