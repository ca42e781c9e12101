package analyse

import (
	"encoding/csv"
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/synthetic"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// long multiplies the number of simulated studies.
var long = flag.Int("long", 1, "simulate so many times as many studies")

func TestMain(m *testing.M) { quelltest.Main(m) }

func near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance }

// Paper 000, section 5: "if the execution times of the mcf VM were 10, 11, and
// 15 seconds …, 0%, 10%, and 50% …; average and worst would be 20% and 50%".
func TestTheMCFExample(t *testing.T) {
	percent, average, worst := OverBest([]float64{10, 11, 15})
	for i, want := range []float64{0, 10, 50} {
		if !near(percent[i], want, 1e-9) {
			t.Errorf("mapping %d: %g %%, want %g", i, percent[i], want)
		}
	}
	if !near(average, 20, 1e-9) || !near(worst, 50, 1e-9) {
		t.Errorf("average %g, worst %g", average, worst)
	}
}

// The expected values are those of R's summary(lm(y ~ x)) for a small example.
func TestFit(t *testing.T) {
	l, ok := Fit([]float64{1, 2, 3, 4, 5}, []float64{2, 4, 5, 4, 5})
	if !ok || !near(l.Slope, 0.6, 1e-12) || !near(l.Intercept, 2.2, 1e-12) || !near(math.Sqrt(l.VarSlope), 0.2828427, 1e-6) ||
		!near(l.PSlope, 0.1240, 5e-4) || !near(l.PIntercept, 0.1009, 5e-4) {
		t.Errorf("%+v, %t", l, ok)
	}
	for name, x := range map[string][]float64{"two points": {1, 2}, "one x": {3, 3, 3, 3}, "none": nil} {
		if _, ok := Fit(x, make([]float64, len(x))); ok {
			t.Errorf("%s give a line", name)
		}
	}
}

// Paper 003, footnote 4: an iteration that spans several intervals adds to each the
// fraction of it that lies there; the fractions sum to 1.
func TestThroughputSplitsIterations(t *testing.T) {
	its := []result.Iteration{{From: 1 * time.Second, To: 3 * time.Second, Units: 1}, {From: 3 * time.Second, To: 13 * time.Second, Units: 1}}
	for i, want := range []float64{1.3 / 6, 0.6 / 6} {
		if got := Bins(its, 0, 13*time.Second, 6*time.Second); len(got) != 2 || !near(got[i], want, 1e-12) {
			t.Errorf("bins %v, bin %d is to be %g", got, i, want)
		}
	}
	var sum float64
	for at := time.Duration(0); at < 13*time.Second; at += 500 * time.Millisecond {
		sum += Throughput(its, at, at+500*time.Millisecond) / 2
	}
	if !near(sum, 2, 1e-9) {
		t.Errorf("the parts sum to %g", sum)
	}
}

func TestStyleAndAngle(t *testing.T) {
	line := func(slopeUp, slopeDown, noise float64) []Point {
		var ps []Point
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 38 {
			x, slope := 0.05*float64(i%19+1), slopeUp
			if i >= 19 {
				x, slope = 1-x, slopeDown
			}
			ps = append(ps, Point{Load: x, Throughput: 2 * (1 + slope*x + noise*r.NormFloat64()), Up: i < 19})
		}
		return ps
	}
	for _, c := range []struct {
		name            string
		up, down, noise float64
		style           string
	}{
		{"both hold", -0.5, -0.5, 0.01, "bold"},
		{"halves differ", -0.5, -0.4, 0.001, "sans"},
		{"no slope", 0, 0, 0.02, "plain"},
		{"neither", -0.02, 0.3, 0.2, "italic"},
	} {
		points := line(c.up, c.down, c.noise)
		h, angle, ok := Halves(points)
		i := Interference{Symmetric: math.Abs(angle) < 3, Significant: ok}
		for _, half := range h {
			i.Significant = i.Significant && half.Line.PSlope < 0.05 && half.Line.PIntercept < 0.05
		}
		if i.Style() != c.style {
			t.Errorf("%s: %s, angle %.2f, %+v", c.name, i.Style(), angle, h)
		}
	}
	// 45° and 26.6°: slopes of 1 and 0.5 of their intercepts.
	exact := []Point{}
	for i := range 10 {
		x := float64(i) / 10
		exact = append(exact, Point{x, 4 * (1 + x), true, 0}, Point{x, 8 * (1 + x/2), false, 0})
	}
	if h, angle, _ := Halves(exact); !near(angle, 45-26.565051, 1e-5) || !near(h[0].Metric, -100, 1e-9) || !near(h[1].Metric, -50, 1e-9) {
		t.Errorf("angle %g, %+v", angle, h)
	}
}

// Tables I and II of paper 003: one scale per kind of environment, foreground avrora
// excluded, and the paper's statements about them.
func TestScaleOfThePaper(t *testing.T) {
	f, err := os.Open("../../../testdata/reference/pinning_interference.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	values, all := map[string][]float64{}, map[string][]float64{}
	for _, r := range rows[1:] {
		v, err := strconv.ParseFloat(r[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		if r[2] != "avrora" {
			values[r[0]] = append(values[r[0]], v)
		}
		all[r[0]+" "+r[1]] = append(all[r[0]+" "+r[1]], v)
	}
	for ve, low := range map[string]float64{"kvm": -3, "lxc": -3.8} {
		s := NewScale(values[ve])
		if s.low != low || s.Shade(slices.Max(values[ve])) != 1 || s.Shade(low) != 0 || s.Shade(106.3) != 1 {
			t.Errorf("%s: scale %+v", ve, s)
		}
		// "close to zero, even mostly negative in the per-chip case", light;
		// "neutral and per-thread yield high values", dark.
		if light, dark := s.Shade(stat.Mean(all[ve+" per-chip"])), s.Shade(stat.Mean(all[ve+" per-thread"])); light > 0.05 || dark < 0.6 {
			t.Errorf("%s: per-chip is %.2f, per-thread %.2f", ve, light, dark)
		}
		for _, v := range all[ve+" per-chip"] {
			if v >= 0 {
				t.Errorf("%s per-chip: %g is not negative", ve, v)
			}
		}
	}
}

// covers counts how often intervals contain the truth.
func covers(t *testing.T, name string, times int, one func(r *rand.Rand) (Interval, float64)) {
	t.Helper()
	hits := 0
	for k := range times {
		i, truth := one(rand.New(rand.NewPCG(7, uint64(k))))
		if i.Low <= truth && truth <= i.High {
			hits++
		}
	}
	share := float64(hits) / float64(times)
	t.Logf("%s: 95 %% intervals cover %.1f %% of %d", name, share*100, times)
	// Allow for chance in addition to the promised 93 to 97 %.
	if slack := 3 * math.Sqrt(0.95*0.05/float64(times)); share < 0.93-max(0, slack-0.02) || share > 0.97+max(0, slack-0.02) {
		t.Errorf("%s: 95 %% intervals cover %.1f %%", name, share*100)
	}
}

func TestCoverage(t *testing.T) {
	ar1 := func(r *rand.Rand, n int, sd, rho float64) []float64 {
		e := make([]float64, n)
		for i := range e {
			x := sd * r.NormFloat64()
			if i == 0 {
				e[i] = x
			} else {
				e[i] = rho*e[i-1] + math.Sqrt(1-rho*rho)*x
			}
		}
		return e
	}
	// The mean of a step: one minute of AR(1) seconds.
	step := func(r *rand.Rand) float64 { return stat.Mean(ar1(r, 60, 0.05, 0.8)) }
	staircase := func(r *rand.Rand, slope float64) []Point {
		var ps []Point
		for i := range 38 {
			x := 0.05 * float64(min(i, 37-i)+1)
			ps = append(ps, Point{Load: x, Throughput: 3 * (1 - slope*x + step(r)), Up: i < 19})
		}
		return ps
	}
	covers(t, "interference of one run, delta method", 100**long, func(r *rand.Rand) (Interval, float64) {
		h, _, _ := Halves(staircase(r, 0.4))
		v, df := (delta(h[0].Line)+delta(h[1].Line))/4, float64(h[0].Line.N+h[1].Line.N-4)
		m := (h[0].Metric + h[1].Metric) / 2
		return Interval{Low: m - tQuantile(df)*math.Sqrt(v), High: m + tQuantile(df)*math.Sqrt(v)}, 40
	})
	covers(t, "interference, t over three runs", 100**long, func(r *rand.Rand) (Interval, float64) {
		var ms []float64
		for range 3 {
			h, _, _ := Halves(staircase(r, 0.4))
			ms = append(ms, (h[0].Metric+h[1].Metric)/2)
		}
		return meanInterval(ms, ""), 40
	})
	levels := func(r *rand.Rand, runs, iterations int, scale float64) Levels {
		var l Levels
		for range runs {
			base := scale * (1 + 0.03*r.NormFloat64())
			var its []Ratio
			for _, x := range ar1(r, iterations, 0.05*base, 0.8) {
				its = append(its, Ratio{base + x, 1})
			}
			l = append(l, its)
		}
		return l
	}
	// Two runs each cover 98 %: Welch's degrees of freedom are few then.
	for _, n := range []int{3, 5} {
		covers(t, "ratio of "+strconv.Itoa(n)+" runs each", 100**long, func(r *rand.Rand) (Interval, float64) {
			return RatioOfMeans(levels(r, n, 30, 1.5), levels(r, n, 30, 1), 1), 1.5
		})
	}
	covers(t, "ratio of 40 runs each, bootstrap", 40**long, func(r *rand.Rand) (Interval, float64) {
		return RatioOfMeans(levels(r, 40, 10, 1.5), levels(r, 40, 10, 1), r.Uint64()), 1.5
	})
}

const simulated = `
version: 1
study: sim
environments:
  ve: {driver: synthetic, truth: {base: 500ms, slope: 0.3, by_placement: {near: 100%, far: 0%}, noise: 3%, ar1: 0.5, drift: 5%, power: 100, power_per_cpu: 20}}
workloads:
  a: {builtin: burn}
  b: {builtin: burn}
roles:
  fg: {workload: a, environment: ve, measure: true}
  bg: {workload: b, environment: ve, measure: true}
factors:
  placement:
    - {name: near, relation: neutral}
    - {name: far, relation: per-core}
design: {repetitions: 6}
run: {for: 60s}
analysis:
  - {kind: degradation}
  - {kind: energy}
  - {kind: migration}
`

// simulate runs a study of synthetic environments in its planned order.
func simulate(t *testing.T, text string, seed uint64) (*study.Study, []result.Run) {
	t.Helper()
	s, err := study.Parse("sim.yaml", []byte(text), study.Known{Builtins: []string{"burn"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Design.Seed = seed
	plan := s.Plan()
	var runs []result.Run
	for i, p := range plan {
		r, _ := synthetic.Run(&p.Cell, synthetic.RunID{N: p.N, Order: i, Runs: len(plan), Seed: seed})
		runs = append(runs, *r)
	}
	return s, runs
}

// A linear drift of 5 % over the study biases no degradation by more than half a point,
// since every block contains every cell.
func TestDriftBiasesNothing(t *testing.T) {
	sums, n := map[string]float64{}, 0
	for seed := range uint64(12 * *long) {
		s, runs := simulate(t, simulated, seed+1)
		got := Compute(s, runs)
		if len(got.Degradations) != 4 || !got.Simulated || got.Noise == nil {
			t.Fatalf("%+v", got)
		}
		for _, d := range got.Degradations {
			sums[d.Part+" "+d.Levels[0].Value] += d.Percent.Value
		}
		n++
		if _, there := got.Insufficient["migration"]; !there {
			t.Error("migrations out of nothing")
		}
	}
	// A rate's degradation at a slowdown of 1.3 is 23.08 %.
	for name, want := range map[string]float64{"fg near": 100 * (1 - 1/1.3), "bg near": 100 * (1 - 1/1.3), "fg far": 0, "bg far": 0} {
		if got := sums[name] / float64(n); !near(got, want, 0.5) {
			t.Errorf("%s: %.2f points, truth %.2f", name, got, want)
		}
	}
}

// The chain from a study file to results, on a staircase: the metric of the simulated
// truth, energy, and percentages of the base placement.
func TestStaircaseStudy(t *testing.T) {
	const text = `
version: 1
study: stairs
environments:
  ve: {driver: synthetic, truth: {base: 200ms, slope: 0.5, by_placement: {near: 100%, per-chip: 0%}, noise: 1%, power: 100, power_per_cpu: 20}}
workloads:
  a: {builtin: burn}
roles:
  fg: {workload: a, environment: ve, measure: true}
  bg: {workload: a, environment: ve, load: {target: $load}}
factors:
  load: {staircase: {from: 10%, to: 90%, step: 10%, hold: 40s, settle: 5s, trail: 5s}}
  placement:
    - {name: near, relation: neutral}
    - {name: per-chip, relation: per-chip}
controls: {solo: false, aa_pairs: 1}
design: {repetitions: 3}
analysis:
  - {kind: interference}
  - {kind: throughput}
`
	s, runs := simulate(t, text, 1)
	got := Compute(s, runs)
	if len(got.Interferences) != 2 || len(got.Systems) != 2 {
		t.Fatalf("%+v", got)
	}
	// A stored study may ask for energy relative to another base: the report's one table is
	// relative to the first.
	s.Analysis = append(s.Analysis, study.Analysis{Kind: "energy", Options: map[string]string{"base": "near"}})
	if both := Compute(s, runs); both.Systems[0].Steps[0].Relative.Value != got.Systems[0].Steps[0].Relative.Value {
		t.Errorf("relative to %+v, want %+v", both.Systems[0].Steps[0].Relative, got.Systems[0].Steps[0].Relative)
	}
	for _, i := range got.Interferences {
		near1 := i.Levels[0].Value == "near"
		// 1/(1 + 0.5·x) falls by a third of its intercept, nearly linearly.
		if m := i.Metric; near1 && !near(m, 35, 3) || !near1 && !near(m, 0, 1.5) {
			t.Errorf("%s: metric %.1f (%.1f to %.1f)", i.Levels[0].Value, m, i.Interval.Low, i.Interval.High)
		}
		if near1 && i.Style() != "bold" || len(i.Points) != 3*18 {
			t.Errorf("%s: %s, %d points", i.Levels[0].Value, i.Style(), len(i.Points))
		}
	}
	for _, sys := range got.Systems {
		first, last := sys.Steps[0], sys.Steps[8]
		if !sys.Symmetric || last.Throughput.Value <= first.Throughput.Value || !finite(first.PerWh.Value) {
			t.Errorf("%+v", sys)
		}
		if sys.Levels[0].Value == "per-chip" && !near(last.Relative.Value, 100, 1e-9) {
			t.Errorf("the base is %.1f %% of itself", last.Relative.Value)
		}
		if sys.Levels[0].Value == "near" && !(last.Relative.Value < 90) {
			t.Errorf("near is %.1f %% of per-chip", last.Relative.Value)
		}
	}
	// Results that are written can be read back, including NaN.
	text2, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back Results
	if err := json.Unmarshal(text2, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(got, back, cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestCorrelation(t *testing.T) {
	x, y := []float64{1, 2, 3, 4}, []float64{1, 4, 9, 16}
	if r := stat.Pearson(x, y); !near(r, 0.9843740, 1e-6) {
		t.Errorf("Pearson %g", r)
	}
	if r := stat.Spearman(x, y); !near(r, 1, 1e-12) {
		t.Errorf("Spearman %g", r)
	}
	if r := stat.Spearman([]float64{1, 2, 2, 3}, []float64{1, 2, 3, 4}); !near(r, 0.9486833, 1e-6) {
		t.Errorf("Spearman with ties %g", r)
	}
	// All 24 orders: 2 are as extreme as a perfect one.
	if p := PermutationP(x, []float64{1, 2, 3, 4}, stat.Pearson, 0, 1); !near(p, 2.0/24, 1e-12) {
		t.Errorf("p %g", p)
	}
	if r := stat.Pearson([]float64{1, 1}, []float64{2, 3}); !math.IsNaN(r) {
		t.Errorf("correlation with a constant: %g", r)
	}
	// Benjamini and Hochberg's own rule: q_i = min over j ≥ i of p_j·m/j.
	if d := cmp.Diff([]float64{0.04, 0.05, 0.05, 0.05, math.NaN()}, Adjust([]float64{0.01, 0.04, 0.03, 0.05, math.NaN()}),
		cmpopts.EquateNaNs(), cmpopts.EquateApprox(0, 1e-12)); d != "" {
		t.Error(d)
	}
}

// Of matrices without any dependence at most 5 % show a dependence after adjustment.
func TestNullMatrix(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	found, times := 0, 60**long
	for range times {
		var ps []float64
		columns := make([][]float64, 6)
		for i := range columns {
			for range 20 {
				columns[i] = append(columns[i], r.NormFloat64())
			}
		}
		for i := range columns {
			for j := range i {
				ps = append(ps, PermutationP(columns[i], columns[j], stat.Pearson, 300, r.Uint64()))
			}
		}
		if slices.ContainsFunc(Adjust(ps), func(q float64) bool { return q < 0.05 }) {
			found++
		}
	}
	if limit := 0.05 + 2.4*math.Sqrt(0.05*0.95/float64(times)); float64(found)/float64(times) > limit {
		t.Errorf("%d of %d matrices of nothing show something", found, times)
	}
}

func TestEventsFollowThePaper(t *testing.T) {
	var runs []result.Run
	// Two machines: cycles follow the time, misses do so in only one of them.
	for vm, coupled := range map[string]float64{"mcf": 1, "lbm": 0} {
		for k, slow := range []float64{1, 1.2, 1.5} {
			kind := study.Main
			if k == 0 {
				kind = study.Solo
			}
			p := study.Part{Role: vm, Measure: true, Workload: study.Workload{Name: vm, Metric: study.Metric{Better: "lower"}}}
			c := study.Cell{Kind: kind, Parts: []study.Part{p}, Levels: []study.Level{{Factor: "k", Value: strconv.Itoa(k)}}}
			runs = append(runs, result.Run{Cell: c, CellKey: c.Key(), Verdict: result.Valid, Window: result.Window{To: time.Hour},
				Parts: []result.Part{{Name: vm, Role: vm, Iterations: []result.Iteration{{From: 0, To: time.Duration(slow * 1e9), Units: 1}},
					Events: map[string]float64{"cycles": 3e9 * slow, "misses": 1e6 * (1 + coupled*(slow-1) + (1-coupled)*float64((k*7)%3))}, Missing: map[string]string{"llc": "no such event"}}}})
		}
	}
	all := Events(runs, 1)
	if len(all) != 1 || len(all[0].Levels) > 0 {
		t.Fatalf("%+v", all)
	}
	c := all[0]
	if !slices.Equal(c.Names, []string{DegradationName, "cycles", "misses"}) || c.N != 6 || c.Missing["llc"] == "" {
		t.Fatalf("%+v", c)
	}
	lbm := stat.Pearson([]float64{1, 1.2, 1.5}, []float64{1, 2, 3})
	if !near(c.PerVM.At(0, 1), 1, 1e-9) || !near(c.PerVM.At(0, 2), (1+lbm)/2, 1e-9) || c.VMs[0][2] != 2 {
		t.Errorf("per machine %v over %v", c.PerVM, c.VMs)
	}
	if c.Q.At(0, 1) < c.P.At(0, 1) || c.Pooled.At(1, 0) != c.Pooled.At(0, 1) {
		t.Errorf("p %v, q %v", c.P, c.Q)
	}
}

// A stranger's record without parts, or with times of centuries, neither ends the report nor keeps it from ending.
func TestMalformedRecords(t *testing.T) {
	steps := []study.Step{{Role: "bg", To: time.Second}}
	parts := []study.Part{{Role: "fg", Measure: true, Workload: study.Workload{Name: "fg"}}, {Role: "bg", Measure: true, Workload: study.Workload{Name: "bg"}}}
	var runs []result.Run
	for _, c := range []study.Cell{{Kind: study.Solo}, {Kind: study.Solo, Parts: parts[:1]}, {Kind: study.Solo, Parts: parts[1:]}, {Kind: study.Main, Steps: steps}, {Kind: study.Main, Parts: parts, Steps: steps}} {
		runs = append(runs, result.Run{Cell: c, CellKey: c.Key(), Verdict: result.Valid})
	}
	if ds := Degradations(runs, 1); len(ds) != 2 || finite(ds[0].Slowdown.Value) {
		t.Errorf("%+v", ds)
	}
	if s := Systems(runs, "placement", "per-chip"); len(s) != 0 {
		t.Errorf("%+v", s)
	}
	if bins := Bins(nil, math.MaxInt64-7, math.MaxInt64, 2); len(bins) != 3 {
		t.Errorf("%d bins, want 3", len(bins))
	}
}

// No runs, one run, iterations of length 0, values that are not finite: no panic, and
// no figure without data.
func FuzzOf(f *testing.F) {
	f.Add(uint64(1), 3, 0.5, 1.0)
	f.Add(uint64(9), 0, math.NaN(), math.Inf(1))
	f.Fuzz(func(t *testing.T, seed uint64, n int, a, b float64) {
		r := rand.New(rand.NewPCG(seed, 0))
		var runs []result.Run
		for i := range min(max(n, 0), 12) {
			p := study.Part{Role: "x", Measure: r.IntN(2) == 0, Workload: study.Workload{Metric: study.Metric{Better: []string{"lower", "higher"}[r.IntN(2)]}}}
			c := study.Cell{Kind: []study.CellKind{study.Main, study.Solo, study.AA}[r.IntN(3)], Parts: []study.Part{p, {Role: "y", Measure: true}},
				Levels: []study.Level{{Factor: "mapping", Value: strconv.Itoa(r.IntN(3))}, {Factor: "neighbours", Value: strconv.Itoa(r.IntN(4))}}}
			run := result.Run{Cell: c, CellKey: c.Key(), N: i, Verdict: result.Valid, Window: result.Window{To: time.Duration(r.Int64N(1e10))},
				Parts: []result.Part{{Name: "x", Role: "x", Metric: a, Events: map[string]float64{"e": b, "signal.cpi": a}, Audit: &result.Audit{}}}}
			for range r.IntN(4) {
				from := time.Duration(r.Int64N(1e10))
				run.Parts[0].Iterations = append(run.Parts[0].Iterations, result.Iteration{From: from, To: from + time.Duration(r.Int64N(3)*1e9), Units: b})
				run.Steps = append(run.Steps, result.Step{Step: study.Step{Role: "y", To: from, Up: r.IntN(2) == 0}, Achieved: a, Joules: b})
			}
			runs = append(runs, run)
		}
		s := &study.Study{Design: study.Design{Repetitions: n % 7}}
		for _, kind := range []string{"score", "degradation", "mapping", "interference", "throughput", "correlation", "migration", "dose-response", "signal-validity"} {
			s.Analysis = append(s.Analysis, study.Analysis{Kind: kind})
		}
		got := Compute(s, runs)
		if len(runs) == 0 && len(got.Insufficient) != len(s.Analysis) {
			t.Errorf("out of nothing: %+v", got)
		}
	})
}

// A client that got no answer for half a second has a rate of 0 for that time. The time
// of an answer is unknown for it.
func TestTimeWithoutAUnit(t *testing.T) {
	run := &result.Run{Window: result.Window{To: time.Second}}
	p := &result.Part{}
	for i, units := range []float64{10, 0, 0, 0, 0, 0, 10, 10, 10, 10} {
		at := time.Duration(i) * 100 * time.Millisecond
		p.Iterations = append(p.Iterations, result.Iteration{From: at, To: at + 100*time.Millisecond, Units: units})
	}
	if got := total(figure(run, p, &study.Metric{Better: "higher"})); !near(got, 50, 1e-9) {
		t.Errorf("%v answers a second, want 50", got)
	}
	if got := total(figure(run, p, &study.Metric{Better: "lower"})); !near(got, 0.01, 1e-9) {
		t.Errorf("%v s an answer, want 0.01", got)
	}
	p.Iterations = p.Iterations[1:6]
	if unit, ok := unitTime(run, p, &study.Metric{Better: "higher"}); ok {
		t.Errorf("nothing was done in %v s each", unit)
	}
}
