package render

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

func within(v, by float64) analyse.Interval {
	return analyse.Interval{Value: v, Low: v - by, High: v + by, Level: 0.95, Method: "t over runs", N: 10}
}

// A dose's report shows how far apart the environments are at both ends, the number of
// cores, and the cost of work. A variation's report shows how much slower each instance
// is.
func TestGapsAndCostsAndVariations(t *testing.T) {
	r := simulate(t, pairs)
	r.Study.Analysis = []study.Analysis{{Kind: "dose-response"}, {Kind: "variation", Options: map[string]string{"factor": "slot"}}}
	large, metal := []study.Level{{Factor: "ve", Value: "large"}}, []study.Level{{Factor: "ve", Value: "metal"}}
	knee := analyse.Knee{Before: 48, After: 49, Step: within(25.2, 1)}
	points := []analyse.DosePoint{{Threads: 2, Value: within(1, 0.1)}, {Neighbours: 47, Threads: 96, Value: within(1.53, 0.1), Longer: within(53, 1), Step: within(53, 1)}}
	r.Results.Doses = []analyse.Dose{{Levels: metal, Part: "test", State: "busy", Unit: "s/addition", Points: points, Knee: &knee, Cores: &analyse.Cores{CPUs: 96, Least: 48, Most: 48, Knee: &knee}},
		{Levels: large, Part: "test", State: "busy", Unit: "s/addition", Points: points, Cores: &analyse.Cores{Least: 2}}}
	r.Results.DoseGaps = []analyse.DoseGap{{Part: "test", Of: "12xlarge", Over: "metal", Lone: 48, Full: 96, First: within(36.7, 0.5), OverOwnLowest: within(0, 0.3), OverBaseLowest: within(36.8, 0.5), AtFull: within(0.2, 0.4), Meeting: analyse.Equivalent}}
	usd := study.Price{Amount: 0.0528, Currency: "USD"}
	r.Results.DoseCosts = []analyse.DoseCost{{Levels: large, Part: "test", State: "busy", Price: usd, CPUs: 2, Unit: "addition/USD", Lone: within(5.1e13, 1e12), Full: within(4.5e13, 1e12), OverBase: within(-1.5, 0.5)}}
	r.Results.Variations = []analyse.Variation{{Part: "test", Unit: "s/addition", Instances: []analyse.Instance{{Name: "i7", Value: within(7, 0.1), Slower: -6.7}, {Name: "i3", Value: within(7.5, 0.1)}, {Name: "i1", Value: within(7.7, 0.1), Slower: 2.67}},
		Mean: within(7.4, 0.3), Between: within(4.9, 3), Within: 0.1, Span: 10, P: 0.0001}}
	for name, text := range map[string]string{"HTML": htmlOf(t, r), "Markdown": markdownOf(t, r)} {
		for _, want := range []string{"from 48 to 49 threads", "2 or more", "12xlarge", "36.7 [36.2, 37.2]", "met", "0.0528 USD", "10^12 addition/USD", "51 [50, 52]", "-1.5 [-2, -1]",
			"i7", "Instances are the levels of slot", "4.9 [1.9, 7.9]", "&lt; 0.001"} {
			if !strings.Contains(strings.ReplaceAll(text, "\\", ""), want) { // brackets are escaped in Markdown
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
	names := map[string]bool{}
	for _, v := range Values(&r.Results) {
		if n := v.Name(); names[n] {
			t.Errorf("two values are %s", n)
		} else {
			names[n] = true
		}
	}
	for _, want := range []string{"dose-response first gap test 12xlarge over metal", "dose-response cores at least ve=metal state=busy test", "variation value test i7", "dose-response work for a price, full ve=large state=busy test"} {
		if !names[want] {
			t.Errorf("no value %q", want)
		}
	}
}
