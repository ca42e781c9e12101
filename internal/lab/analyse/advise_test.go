package analyse

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Two machines with many misses and two with few, in two sets of repetitions: a machine
// with many misses slows another such machine on the same core by half.
func mappingRuns(event string) []result.Run {
	misses := map[string]float64{"a": 1e6, "b": 9e5, "c": 10, "d": 20}
	mappings := map[string][2]string{"a+b|c+d": {"ab", "cd"}, "a+c|b+d": {"ac", "bd"}, "a+d|b+c": {"ad", "bc"}}
	part := func(name string) study.Part {
		return study.Part{Role: name, Measure: true, Workload: study.Workload{Name: "w" + name, Metric: study.Metric{Better: "lower"}}}
	}
	var runs []result.Run
	add := func(c study.Cell, n int, seconds func(name string) float64) {
		r := result.Run{Cell: c, CellKey: c.Key(), N: n, Verdict: result.Valid, Window: result.Window{To: 100 * time.Second}}
		for _, p := range c.Parts {
			r.Parts = append(r.Parts, result.Part{Name: p.Role, Role: p.Role, Events: map[string]float64{event: misses[p.Role] * 100},
				Iterations: []result.Iteration{{From: 0, To: time.Duration(seconds(p.Role) * 1e9), Units: 1}}})
		}
		runs = append(runs, r)
	}
	for n := range 3 {
		jitter := 1 + float64(n)/100
		for name, cores := range mappings {
			c := study.Cell{Kind: study.Main, Levels: []study.Level{{Factor: "mapping", Value: name}}, Mapping: map[string]int{}}
			beside := map[string]string{}
			for core, pair := range cores {
				for i := range pair {
					c.Mapping[pair[i:i+1]+"/0"] = core
					beside[pair[i:i+1]] = pair[1-i : 2-i]
				}
			}
			for _, p := range []string{"a", "b", "c", "d"} {
				c.Parts = append(c.Parts, part(p))
			}
			add(c, n, func(p string) float64 {
				if misses[p] > 1e5 && misses[beside[p]] > 1e5 {
					return 1.5 * jitter
				}
				return 1
			})
		}
		for _, p := range []string{"a", "b", "c", "d"} {
			add(study.Cell{Kind: study.Solo, Parts: []study.Part{part(p)}, Levels: []study.Level{{Factor: "n", Value: p + strconv.Itoa(0)}}}, n,
				func(string) float64 { return 1 })
		}
	}
	return runs
}

func TestAdviceKeepsApartWhatMisses(t *testing.T) {
	got := Mappings(mappingRuns("l2-misses"), "mapping")
	if len(got) != 1 || got[0].Advised == nil {
		t.Fatalf("%+v", got)
	}
	a := got[0].Advised
	// 1,000,000 + 10 and 900,000 + 20 are more even than the swap of 20 and 10.
	if a.By != "l2-misses" || a.Mapping != "a+d|b+c" && a.Mapping != "a+c|b+d" || a.Percent != 0 || a.Best != 0 || a.WorstMapping != "a+b|c+d" || !math.IsNaN(float64(a.Default)) {
		t.Errorf("%+v", a)
	}
	if !near(a.Worst, 100*(1.5*1.01-1)/2, 1e-9) {
		t.Errorf("worst %g", a.Worst)
	}
	// Two of four machines lose 50 to 53 % in one of three mappings.
	if i := got[0].Interval; !near(i.Value, 100*(1.5*1.01-1)/6, 1e-9) || !(i.Low < i.Value && i.Value < i.High) || i.N != 3 {
		t.Errorf("average %+v", i)
	}
	if i := got[0].Parts[0].Intervals["a+b|c+d"]; !near(i.Value, 51.5, 1e-9) || i.N != 3 || !(i.Low > 45 && i.High < 58) {
		t.Errorf("one machine %+v", i)
	}
	if got := Mappings(mappingRuns("branches"), "mapping"); got[0].Advised != nil {
		t.Errorf("advice by nothing: %+v", got[0].Advised)
	}
}

// A machine whose two virtual CPUs share a core is compared with its solo run on one
// core, a machine on two cores with its solo run on two.
func TestBaselineHasTheSameShape(t *testing.T) {
	part := study.Part{Role: "vm", Measure: true, Environment: study.Environment{CPUs: 2}, Workload: study.Workload{Name: "w", Metric: study.Metric{Better: "lower"}}}
	other := study.Part{Role: "nb", Workload: study.Workload{Name: "n"}}
	var runs []result.Run
	add := func(kind study.CellKind, name string, parts []study.Part, mapping map[string]int, seconds float64) {
		c := study.Cell{Kind: kind, Parts: parts, Mapping: mapping, Levels: []study.Level{{Factor: "mapping", Value: name}}}
		for n := range 2 {
			runs = append(runs, result.Run{Cell: c, CellKey: c.Key(), N: n, Verdict: result.Valid, Window: result.Window{To: 100 * time.Second},
				Parts: []result.Part{{Name: "vm", Role: "vm", Iterations: []result.Iteration{{To: time.Duration(seconds * 1e9), Units: 1}}}}})
		}
	}
	one, two := map[string]int{"vm/0": 0, "vm/1": 0}, map[string]int{"vm/0": 0, "vm/1": 1}
	add(study.Solo, "one", []study.Part{part}, one, 2)
	add(study.Solo, "two", []study.Part{part}, two, 1)
	add(study.Main, "vm/0+vm/1|nb", []study.Part{part, other}, map[string]int{"vm/0": 1, "vm/1": 1, "nb/0": 0}, 2.2)
	add(study.Main, "vm/0|vm/1+nb", []study.Part{part, other}, map[string]int{"vm/0": 1, "vm/1": 0, "nb/0": 0}, 1.5)
	got := Degradations(runs, 1)
	if len(got) != 2 || !near(got[0].Percent.Value, 10, 1e-6) || !near(got[1].Percent.Value, 50, 1e-6) {
		t.Errorf("%+v", got)
	}
}
