package analyse

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Iterations of 1, 1, 3 and 3 s next to a neighbour are 4 in 8 s; alone, at 1 s each, they
// are 1/s: half of the throughput is lost, and not the 33 % by which the mean of the four
// rates, (1+1+⅓+⅓)/4, is lower. The time per iteration is doubled, and its degradation 100 %.
func TestRatesAreWorkByTime(t *testing.T) {
	run := func(kind study.CellKind, parts int, better string, seconds ...float64) result.Run {
		c := study.Cell{Kind: kind}
		for _, role := range []string{"fg", "bg"}[:parts] {
			c.Parts = append(c.Parts, study.Part{Role: role, Measure: role == "fg", Workload: study.Workload{Name: role, Metric: study.Metric{Better: better}}})
		}
		p, at := result.Part{Name: "fg", Role: "fg"}, time.Duration(0)
		for _, s := range seconds {
			to := at + time.Duration(s*float64(time.Second))
			p.Iterations = append(p.Iterations, result.Iteration{From: at, To: to, Units: 1})
			at = to
		}
		return result.Run{CellKey: c.Key(), Cell: c, Verdict: result.Valid, Window: result.Window{To: at}, Parts: []result.Part{p}}
	}
	for better, want := range map[string]struct{ co, percent float64 }{"higher": {0.5, 50}, "lower": {2, 100}} {
		runs := []result.Run{run(study.Solo, 1, better, 1, 1, 1, 1), run(study.Main, 2, better, 1, 1, 3, 3)}
		ds := Degradations(runs, 1)
		if len(ds) != 1 || !near(ds[0].Solo.Value, 1, 1e-12) || !near(ds[0].Co.Value, want.co, 1e-12) || !near(ds[0].Percent.Value, want.percent, 1e-9) || !near(ds[0].Slowdown.Value, 2, 1e-12) {
			t.Errorf("%s is better: %+v", better, ds)
			continue
		}
		// Draws of four are all short or all long in one of 16 cases each: the bounds are
		// those of one iteration of the other kind, or of none.
		if i := ds[0].Slowdown; i.Low < 1 || i.Low > 1.5 || i.High < 2.5 || i.High > 3 || !strings.Contains(i.Method, "bootstrap") {
			t.Errorf("%s is better: slowdown %+v", better, i)
		}
		scores := Scores(runs, 1)
		if len(scores) != 1 || !near(scores[0].Value.Value, want.co, 1e-12) || !finite(scores[0].Value.Low, scores[0].Value.High) {
			t.Errorf("%s is better: score %+v", better, scores)
		}
		if n, ok := NoiseFloor([]result.Run{runs[0], run(study.Main, 1, better, 2, 2), run(study.Main, 1, better, 1, 3)}, 1); !ok || n.Floor != 0 {
			t.Errorf("%s is better: two iterations in four seconds differ from two in four: %+v", better, n)
		}
	}
}

// Alone sysbench does 1,000 events/s in 2 s of CPU time, next to another on its CPU 500 events/s in
// 1 s of CPU time, both in executions of 2 s: half of the rate is lost, and an event takes 1 ms of
// CPU time and 2 million instructions as before.
func TestUnitsOfACommandOfAFixedLength(t *testing.T) {
	run := func(kind study.CellKind, rate float64, cpu time.Duration, roles ...string) result.Run {
		c := study.Cell{Kind: kind}
		for _, role := range roles {
			c.Parts = append(c.Parts, study.Part{Role: role, Measure: role == "fg", Workload: study.Workload{Name: role, Metric: study.Metric{Parse: "sysbench", Better: "higher"}}})
		}
		its := []result.Iteration{{To: 2 * time.Second, Units: 1}}
		return result.Run{CellKey: c.Key(), Cell: c, Verdict: result.Valid, Window: result.Window{To: 2 * time.Second},
			Parts: []result.Part{{Name: "fg", Role: "fg", Iterations: its, Metric: rate, CPUTime: cpu, Events: map[string]float64{"instructions": 2e9 * cpu.Seconds()}}}}
	}
	runs := []result.Run{run(study.Solo, 1000, 2*time.Second, "fg"), run(study.Main, 500, time.Second, "fg", "bg")}
	if ds := Degradations(runs, 1); len(ds) != 1 || !near(ds[0].Percent.Value, 50, 1e-9) || !near(ds[0].CPU.Value, 0, 1e-9) {
		t.Errorf("degradations %+v", ds)
	}
	for i := range runs {
		if of, _, _ := machines([]*result.Run{&runs[i]}); len(of) != 1 || !near(of[0].points[0]["instructions"], 2e6, 1e-3) {
			t.Errorf("run %d: %+v", i, of)
		}
	}
}

// No packet is lost in 10 s alone, and 3 % are lost next to a neighbour. The figure alone is 0 %,
// not the 10 s that the command took, and 3 % are no multiple of it.
func TestFigureOfZero(t *testing.T) {
	run := func(kind study.CellKind, lost float64, roles ...string) result.Run {
		c := study.Cell{Kind: kind, Levels: []study.Level{{Factor: "mapping", Value: strings.Join(roles, "+")}}}
		for _, role := range roles {
			c.Parts = append(c.Parts, study.Part{Role: role, Measure: role == "fg", Workload: study.Workload{Name: role, Metric: study.Metric{Parse: "json:end.sum.lost_percent", Unit: "%", Better: "lower"}}})
		}
		its := []result.Iteration{{To: 10 * time.Second, Units: 1}}
		return result.Run{CellKey: c.Key(), Cell: c, Verdict: result.Valid, Window: result.Window{To: 10 * time.Second}, Parts: []result.Part{{Name: "fg", Role: "fg", Iterations: its, Metric: lost}}}
	}
	runs := []result.Run{run(study.Solo, 0, "fg"), run(study.Main, 0, "fg"), run(study.Main, 3, "fg", "bg")}
	if s := Scores(runs, 1); len(s) != 2 || s[0].Value.Value != 0 || s[1].Value.Value != 3 {
		t.Errorf("scores %+v", s)
	}
	if ds := Degradations(runs, 1); len(ds) != 1 || ds[0].Solo.Value != 0 || ds[0].Co.Value != 3 || finite(ds[0].Percent.Value) {
		t.Errorf("degradations %+v", ds)
	}
	if ms := Mappings(runs, "mapping"); len(ms) != 0 {
		t.Errorf("mappings %+v", ms)
	}
}

// A command that was measured once alone and once next to a neighbour, 10 and 8 events/s: 20 % are
// lost, and nothing is known of how much two runs differ. An interval of [20, 20] would reproduce
// or refute any expectation.
func TestSingleFiguresHaveNoInterval(t *testing.T) {
	for name, co := range map[string]Levels{"one run": {{{8, 1}}}, "one of two": {{{8, 1}}, nil}} {
		i := percent(RatioOfMeans(Levels{{{10, 1}}}, co, 1), "higher")
		if !near(i.Value, 20, 1e-9) || finite(i.Low) || finite(i.High) || i.N != 1 {
			t.Errorf("%s: %+v", name, i)
		}
	}
	if i := RatioOfMeans(Levels{{{10, 1}}}, Levels{{{8, 1}}, {{7, 1}}, {{9, 1}}}, 1); !near(i.Value, 1.25, 1e-9) || finite(i.Low) || finite(i.High) {
		t.Errorf("one run against three: %+v", i)
	}
	if i := RatioOfMeans(Levels{{{10, 1}, {12, 1}}}, Levels{{{8, 1}, {7, 1}}}, 1); !(i.Low < i.Value && i.Value < i.High) {
		t.Errorf("two iterations each: %+v", i)
	}
}

// Sets of 2, 4 and 100 % on average: the paper's two have the mean 3 and the geometric mean
// √8; the third, which its figure does not have, must not count.
func TestHeadlineOfNamedSets(t *testing.T) {
	set := func(name string, average, worst float64) MappingResult {
		return MappingResult{Set: "set=" + name, Interval: meanInterval([]float64{average}, ""), WorstInterval: meanInterval([]float64{worst}, "")}
	}
	sets := []MappingResult{set("A", 100, 900), set("WL1", 2, 10), set("WL11", 4, 30)}
	h := headline(sets, []string{"WL1", "WL11"})
	if h == nil || h.Sets != 2 || h.Average.Mean.Value != 3 || h.Average.Largest.Value != 4 || !near(h.Average.Geometric.Value, math.Sqrt(8), 1e-9) || h.Worst.Mean.Value != 20 || !slices.Equal(h.Left, []string{"set=A"}) {
		t.Errorf("%+v", h)
	}
	if h := headline(sets, nil); h.Sets != 3 || !near(h.Average.Mean.Value, 106.0/3, 1e-9) || h.Left != nil {
		t.Errorf("%+v", h)
	}
	if h := headline(sets, []string{"WL1", "WL"}); h != nil {
		t.Errorf("of one set: %+v", h)
	}
}

// Three steps of 10 s, 100 J each second of the first and 150 J of the second and the third;
// the background does 1, 2 and 4 units a second at 10, 20 and 30 % of its CPUs. Figure 4 is
// those, and figure 7 is 100, 150 and 150 W. 10 units next to 1000 J are 36 units/Wh.
func TestBackgroundAndPowerByHand(t *testing.T) {
	c := study.Cell{Kind: study.Main, Parts: []study.Part{{Role: "fg", Measure: true}, {Role: "bg"}}}
	r := result.Run{Verdict: result.Valid, Parts: []result.Part{{Name: "fg", Role: "fg"}, {Name: "bg", Role: "bg"}}}
	for k, units := range []float64{1, 2, 4} {
		for _, up := range []bool{true, false} {
			n := len(r.Steps)
			from := time.Duration(n) * 10 * time.Second
			r.Steps = append(r.Steps, result.Step{Step: study.Step{Role: "bg", From: from, To: from + 10*time.Second, Up: up}, Achieved: float64(k+1) / 10, Joules: []float64{1000, 1500, 1500}[k]})
			c.Steps = append(c.Steps, r.Steps[n].Step)
			r.Parts[0].Iterations = append(r.Parts[0].Iterations, result.Iteration{From: from, To: from + 10*time.Second, Units: 0})
			r.Parts[1].Iterations = append(r.Parts[1].Iterations, result.Iteration{From: from, To: from + 10*time.Second, Units: 10 * units})
		}
	}
	for i := range r.Parts[0].Iterations {
		r.Parts[0].Iterations[i].Units = float64(60 - i)
	}
	r.Cell, r.CellKey = c, c.Key()
	is := Interferences([]result.Run{r})
	if len(is) != 1 || len(is[0].Background) != 6 {
		t.Fatalf("%+v", is)
	}
	for i, p := range is[0].Background {
		if want := (Point{[]float64{0.1, 0.2, 0.3}[i/2], []float64{1, 2, 4}[i/2], i%2 == 0, 0}); p != want {
			t.Errorf("%+v, want %+v", p, want)
		}
	}
	r.Parts = r.Parts[1:]
	s := Systems([]result.Run{r}, "placement", "per-chip")
	if len(s) != 1 || s[0].Steps[0].PerWh.Value != 36 {
		t.Fatalf("%+v", s)
	}
	for i, want := range []float64{100, 100, 150, 150, 150, 150} {
		if got := s[0].Steps[i].Watts.Value; got != want {
			t.Errorf("step %d: %v W, want %v", i, got, want)
		}
	}
}

// What a part does with others is compared with what it does alone at the same load, with as many
// threads, on the same host and on as many CPUs; here each of these halves or doubles its rate.
func TestBaselineIsTheSamePart(t *testing.T) {
	base := func() study.Part {
		return study.Part{Role: "fg", Measure: true, Host: "a", Slots: 2, Target: 1, Workload: study.Workload{Name: "w", Threads: 2, Metric: study.Metric{Better: "higher"}}}
	}
	place := study.Placement{Name: "apart", Relation: "per-core"}
	run := func(kind study.CellKind, p study.Part, rate float64) result.Run {
		c := study.Cell{Kind: kind, Place: place, Parts: []study.Part{p}}
		if kind == study.Main {
			c.Parts = append(c.Parts, study.Part{Role: "bg"})
		}
		return result.Run{CellKey: c.Key(), Cell: c, Verdict: result.Valid, Window: result.Window{To: time.Second},
			Parts: []result.Part{{Name: "fg", Role: "fg", Iterations: []result.Iteration{{To: time.Second, Units: rate}}}}}
	}
	for name, change := range map[string]func(p *study.Part){
		"load":    func(p *study.Part) { p.Target = 0.5 },
		"threads": func(p *study.Part) { p.Workload.Threads = 1 },
		"host":    func(p *study.Part) { p.Host = "b" },
		"slots":   func(p *study.Part) { p.Slots = 4 },
		"slot":    func(p *study.Part) { p.Slot = 1 },
	} {
		other := base()
		change(&other)
		runs := []result.Run{run(study.Solo, base(), 100), run(study.Solo, other, 50), run(study.Main, base(), 90), run(study.Main, other, 45)}
		ds := Degradations(runs, 1)
		if len(ds) != 2 || !near(ds[0].Percent.Value, 10, 1e-9) || !near(ds[1].Percent.Value, 10, 1e-9) {
			t.Errorf("%s: %+v", name, ds)
		}
	}
}

// Alone a part does 100 units a second, next to an environment in which nothing runs 98, next to a busy one 90.
func TestIdleNeighboursCostOfTheirOwn(t *testing.T) {
	run := func(kind study.CellKind, rate float64, parts ...study.Part) result.Run {
		p := study.Part{Role: "fg", Measure: true, Workload: study.Workload{Name: "w", Metric: study.Metric{Better: "higher"}}}
		c := study.Cell{Kind: kind, Levels: []study.Level{{Factor: "ve", Value: "lxc"}}, Parts: append([]study.Part{p}, parts...)}
		return result.Run{CellKey: c.Key(), Cell: c, Verdict: result.Valid, Window: result.Window{To: time.Second},
			Parts: []result.Part{{Name: "fg", Role: "fg", Iterations: []result.Iteration{{To: time.Second, Units: rate}}}}}
	}
	ds := Degradations([]result.Run{run(study.Solo, 100), run(study.Idle, 98, study.Part{Role: "bg", Idle: true}), run(study.Main, 90, study.Part{Role: "bg"})}, 1)
	if len(ds) != 2 || !near(ds[0].Percent.Value, 10, 1e-9) || !near(ds[1].Percent.Value, 2, 1e-9) {
		t.Fatalf("%+v", ds)
	}
	if of := study.LevelText(ds[1].Levels); of != "ve=lxc control=idle-neighbour" || len(ds[0].Levels) != 1 {
		t.Errorf("%q, %v", of, ds[0].Levels)
	}
}

// A background that does 20 units a second at full load, and a foreground that does 10: next to
// each other at 25 % and 75 % they do 4 and 12, and 8 and 6. In shares of their work alone that
// is 0.2 + 0.8 and 0.6 + 0.6, whatever the mean load of the background's own staircase was.
func TestMixedPairsByHand(t *testing.T) {
	steps := []study.Step{{Role: "bg", Target: 0.25, Up: true, To: 10 * time.Second}, {Role: "bg", Target: 0.75, Up: true, From: 10 * time.Second, To: 20 * time.Second}}
	part := func(role string) study.Part {
		return study.Part{Role: role, Measure: true, Workload: study.Workload{Name: role, WorkUnit: "event"}}
	}
	run := func(kind study.CellKind, climbs bool, units map[string][2]float64) result.Run {
		c := study.Cell{Kind: kind}
		r := result.Run{Verdict: result.Valid, Window: result.Window{To: 20 * time.Second}}
		for _, role := range []string{"fg", "bg"} {
			u, ok := units[role]
			if !ok {
				continue
			}
			c.Parts = append(c.Parts, part(role))
			r.Parts = append(r.Parts, result.Part{Name: role, Role: role, Iterations: []result.Iteration{{To: 10 * time.Second, Units: 10 * u[0]}, {From: 10 * time.Second, To: 20 * time.Second, Units: 10 * u[1]}}})
		}
		if climbs {
			c.Steps = steps
			r.Steps = []result.Step{{Step: steps[0], Achieved: 0.25}, {Step: steps[1], Achieved: 0.75}}
		}
		r.Cell, r.CellKey = c, c.Key()
		return r
	}
	runs := []result.Run{run(study.Solo, false, map[string][2]float64{"fg": {10, 10}}), run(study.Solo, true, map[string][2]float64{"bg": {5, 15}}),
		run(study.Main, true, map[string][2]float64{"fg": {8, 6}, "bg": {4, 12}})}
	s := Systems(runs, "placement", "per-chip")
	if len(s) != 1 || !s[0].Normalised || len(s[0].Steps) != 2 {
		t.Fatalf("%+v", s)
	}
	for i, want := range []float64{1, 1.2} {
		if got := s[0].Steps[i].Throughput.Value; !near(got, want, 1e-12) {
			t.Errorf("step %d: %v, want %v", i, got, want)
		}
	}
}

// Of four threads on one CPU a unit takes four times as long as of one, also alone, and has four times
// the switches: that is no degradation. Next to others it has more switches where it is faster.
func TestEventsOfOtherThreads(t *testing.T) {
	var runs []result.Run
	for _, threads := range []int{1, 4} {
		for k, more := range []float64{0, -0.1, 0, 0.1} {
			c := study.Cell{Kind: study.Main, Levels: []study.Level{{Factor: "k", Value: string(rune('a' + k))}},
				Parts: []study.Part{{Role: "fg", Measure: true, Workload: study.Workload{Name: "w", Threads: threads, Metric: study.Metric{Better: "lower"}}}}}
			if k == 0 {
				c.Kind = study.Solo
			}
			n := float64(threads)
			runs = append(runs, result.Run{Cell: c, CellKey: c.Key(), Verdict: result.Valid, Window: result.Window{To: time.Minute}, Parts: []result.Part{{Name: "fg", Role: "fg",
				Iterations: []result.Iteration{{To: time.Duration(n * (1 + more) * 1e9), Units: 1}}, Events: map[string]float64{"switches": n * (1 - more)}}}})
		}
	}
	if all := Events(runs, 1); len(all) != 1 || !near(all[0].Pooled.At(0, 1), -1, 1e-6) {
		t.Errorf("%+v", all)
	}
}

// An event that had no counter in a run is unknown there and not 0: the mean alone is of the runs in which it was
// counted, and two such runs of a machine have no correlation.
func TestEventsThatSomeRunsLack(t *testing.T) {
	var runs []result.Run
	add := func(role string, kind study.CellKind, seconds, misses float64) {
		r := result.Run{Cell: study.Cell{Kind: kind, Parts: []study.Part{{Role: role, Measure: true, Workload: study.Workload{Metric: study.Metric{Better: "lower"}}}}},
			Verdict: result.Valid, Window: result.Window{To: time.Minute},
			Parts: []result.Part{{Name: role, Role: role, Iterations: []result.Iteration{{To: time.Duration(seconds * 1e9), Units: 1}}}}}
		if misses > 0 {
			r.Parts[0].Events = map[string]float64{"misses": misses}
		}
		runs = append(runs, r)
	}
	for role, second := range map[string]float64{"a": 10, "b": 0} {
		add(role, study.Solo, 1, 10)
		add(role, study.Solo, 1, second)
		add(role, study.Main, 1.2, 12)
		add(role, study.Main, 1.4, 14)
	}
	add("c", study.Main, 1, 10)
	add("c", study.Main, 1.2, 0)
	add("c", study.Main, 1.4, 5)
	all := Events(runs, 1)
	if len(all) != 1 || !near(all[0].Pooled.At(0, 1), 1, 1e-9) || all[0].VMs[0][1] != 2 || !near(all[0].PerVM.At(0, 1), 1, 1e-9) {
		t.Errorf("%+v", all)
	}
}

// A part that is held at half of its CPU does five units a second alone: at full load ten.
func TestAloneRateOfAHeldPart(t *testing.T) {
	r := result.Run{Cell: study.Cell{Kind: study.Solo, Parts: []study.Part{{Role: "fg", Target: 0.5}}}, Window: result.Window{To: 10 * time.Second},
		Parts: []result.Part{{Name: "fg", Role: "fg", Iterations: []result.Iteration{{To: 10 * time.Second, Units: 50}}}}}
	if got := aloneRate([]*result.Run{&r}); !near(got, 10, 1e-12) {
		t.Errorf("%v/s, want 10", got)
	}
}
