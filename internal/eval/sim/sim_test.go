package sim

import (
	"encoding/csv"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/stat"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func setup(t testing.TB, rule detect.Method, minutes int) Setup {
	t.Helper()
	p, err := rivals.Load(rule)
	if err != nil {
		t.Fatal(err)
	}
	policy := plan.Paper()
	policy.Mode = plan.On
	return Setup{Rule: p, Policy: policy, Minutes: minutes}
}

// simulator has learnt its specs with seed 1. It is shared, since learning takes as long as
// playing a day.
var simulator = sync.OnceValue(func() *Simulator { return NewSimulator(1) })

// TestFamilies: at least 200, with different names, both halves of every class, so that
// tuning on one half is relevant for the other.
func TestFamilies(t *testing.T) {
	all := Scenarios()
	names, classes := map[string]bool{}, map[string]map[Half]bool{}
	for _, s := range all {
		if names[s.Name] {
			t.Errorf("duplicate scenario %s", s.Name)
		}
		names[s.Name] = true
		if classes[s.Class] == nil {
			classes[s.Class] = map[Half]bool{}
		}
		classes[s.Class][s.Half] = true
	}
	if len(all) < 200 {
		t.Errorf("%d families", len(all))
	}
	for c, halves := range classes {
		if len(halves) != 2 {
			t.Errorf("class %q is in one half only", c)
		}
	}
}

// TestFleetIsTheSameWithAnyWorkers: the same seed gives the same report, to the last bit. It is the
// test that plays machines in parallel, so make test runs it by its name with the race detector too.
func TestFleetIsTheSameWithAnyWorkers(t *testing.T) {
	all := Scenarios()
	var orders []Order
	for i := 0; i < len(all); i += 29 {
		orders = append(orders, Order{&all[i], 7})
	}
	play := func(workers int) string {
		var b []byte
		simulator().RunAll(orders, setup(t, detect.Quell, 90), workers, func(c Case) {
			text, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			b = append(append(b, text...), '\n')
		})
		return string(b)
	}
	one := play(1)
	if one != play(4) {
		t.Error("two plays of one seed differ")
	}
	if len(one) < 1000 {
		t.Errorf("hardly anything was played: %q", one)
	}
}

// TestNoiseIsFigure7s: GEV(1.73, 0.133, −0.0534) has mean 1.80 and σ 0.16, and 4.0 % of it
// is above mean + 2σ; the noise is that distribution, standardised.
func TestNoiseIsFigure7s(t *testing.T) {
	s := newShape()
	over, sum, sq := 0, 0.0, 0.0
	for _, x := range s {
		sum, sq = sum+float64(x), sq+float64(x)*float64(x)
		if x > 2 {
			over++
		}
	}
	if mean, sd := sum/quantiles, math.Sqrt(sq/quantiles); math.Abs(mean) > 1e-4 || math.Abs(sd-1) > 1e-4 {
		t.Errorf("mean %.5f, σ %.5f", mean, sd)
	}
	if share := float64(over) / quantiles; math.Abs(share-0.040) > 0.001 {
		t.Errorf("%.4f above 2 σ, the paper's fit has 0.040", share)
	}
}

// reference reads a table of the papers: the values of a column, by the first column.
func reference(t *testing.T, name, column string) map[string]float64 {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "testdata", "reference", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, row := range rows[1:] {
		values[row[0]], err = strconv.ParseFloat(row[slices.Index(rows[0], column)], 64)
		if err != nil {
			t.Fatal(err)
		}
	}
	return values
}

func TestFiguresAreThePapers(t *testing.T) {
	said := reference(t, "cpi2_headline.csv", "value")
	search := served()[3]
	for name, have := range map[string]float64{"web_search_cpi_mean": search.Mean, "web_search_cpi_stddev": search.StdDev,
		"web_search_gev_location": stat.Figure7.Location, "web_search_gev_scale": stat.Figure7.Scale, "web_search_gev_shape": stat.Figure7.Shape} {
		if want, ok := said[name]; !ok || want != have {
			t.Errorf("%s is %v, the paper has %v", name, have, want)
		}
	}
	smt := reference(t, "aws_metal_degradation.csv", "full_degradation_percent")
	for _, p := range Platforms() {
		if want := smt[string(p.Name)]; math.Abs(100*p.SMT-want) > 1e-9 {
			t.Errorf("%s loses %v %%, the study has %v", p.Name, 100*p.SMT, want)
		}
	}
	if len(smt) != len(Platforms()) {
		t.Errorf("the study has %d platforms", len(smt))
	}
}

// TestSpecsAreLearnt: spec.History learns from the calm samples the published mean and σ of
// each job, within the sampling error.
func TestSpecsAreLearnt(t *testing.T) {
	s := simulator().specs
	sig, _ := sample.LookupSignal(sample.CPI)
	for _, j := range served() {
		got := s.of(j, sig)
		if got.State.String() != "ready" || math.Abs(got.Mean/j.Mean-1) > 0.05 || math.Abs(got.StdDev/j.StdDev-1) > 0.25 {
			t.Errorf("%s: %v %.3f ± %.3f, want %.3f ± %.3f", j.Name, got.State, got.Mean, got.StdDev, j.Mean, j.StdDev)
		}
	}
}

// TestStress: no stress at no load, more load never reduces it, and the queues are the
// textbooks'.
func TestStress(t *testing.T) {
	for _, c := range Channels() {
		last := -1.0
		for load := 0.0; load < 4; load += 0.01 {
			x := c.stress(load, 48)
			if x < last || math.IsNaN(x) || x < 0 {
				t.Fatalf("%s at %.2f: %v after %v", c, load, x, last)
			}
			last = x
		}
		if c.stress(0, 48) != 0 {
			t.Errorf("%s presses at no load", c)
		}
	}
	for _, w := range []struct {
		c    Channel
		load float64
		want float64
	}{{LLC, 2, 0.5}, {LLC, 0.9, 0}, {Bandwidth, 0.5, 1}, {IO, 0.8, 4}, {SMT, 0.75, 0.5}} {
		if got := w.c.stress(w.load, 48); math.Abs(got-w.want) > 1e-9 {
			t.Errorf("%s at %.2f: %v, want %v", w.c, w.load, got, w.want)
		}
	}
	// M/M/c with one server is M/M/1.
	if got := CPU.stress(0.5, 1); math.Abs(got-1) > 1e-9 {
		t.Errorf("M/M/1 at 0.5: %v, want 1", got)
	}
}

// TestAntagonistsHurtAndInnocentsDoNot: every family with antagonists has victims in at
// least one of three cases; a family without has none. Who suffers does not depend on what is
// detected, so only the truth is played.
func TestAntagonistsHurtAndInnocentsDoNot(t *testing.T) {
	p := simulator()
	all := Scenarios()
	for i := range all {
		s := &all[i]
		victims := 0
		for seed := range uint64(3) {
			c := p.Run(s, seed, Setup{Minutes: 75, Blind: true})
			if len(c.Victims) > 0 {
				victims++
				break
			}
		}
		if s.Pattern != "" && victims == 0 {
			t.Errorf("%s: no victim in three cases", s.Name)
		}
		if s.Pattern == "" && victims != 0 {
			t.Errorf("%s: a victim without an antagonist", s.Name)
		}
	}
}

// TestVisitsADay: a fleet's machine has victims on about as many days as antagonists
// come. An everyday one, which is otherwise the same, has none. No task is capped.
func TestVisitsADay(t *testing.T) {
	p := simulator()
	for _, s := range []Scenario{Fleet(), Everyday()} {
		hurt, days := 0, 60.
		if !s.Visits {
			days = 12 // on none of them
		}
		for seed := range uint64(days) {
			if c := p.Run(&s, seed, Setup{Minutes: 24 * 60, Blind: true}); len(c.Victims) > 0 {
				hurt++
			}
		}
		if least, most := days*visitsADay/2, days*visitsADay; !s.Visits && hurt > 0 || s.Visits && (float64(hurt) < least || float64(hurt) > most) {
			t.Errorf("%s: victims on %d of %v days", s.Name, hurt, days)
		}
	}
}

// TestACapActsBack: capped at 0.1 CPU-s/s, the only antagonist no longer raises the victim
// over its threshold.
func TestACapActsBack(t *testing.T) {
	all := Scenarios()
	i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == "llc/onset/strong/plain" })
	m := newMachine(all[i], 4, simulator().shape, simulator().specs)
	over := func(minutes int) (n int) {
		for range minutes {
			m.step()
			if m.suffers(0) {
				n++
			}
		}
		return n
	}
	over(60)
	if n := over(10); n < 8 {
		t.Fatalf("the victim suffers in %d of 10 minutes", n)
	}
	m.cap(m.antagonists[0], 0.1)
	if n := over(10); n != 0 {
		t.Errorf("under the cap it suffers in %d of 10 minutes", n)
	}
	m.cap(m.antagonists[0], math.Inf(1))
	m.reaction = goesOn
	m.tasks[m.antagonists[0]].idleMinutes = 0
	if n := over(10); n < 8 {
		t.Errorf("after the cap it suffers in %d of 10 minutes", n)
	}
}

// TestWavesKeepTheirLevels: every wave has exactly two levels of demand.
func TestWavesKeepTheirLevels(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, w := range []wave{{kind: steady}, {kind: bursts, meanOn: 4, meanOff: 7}, {kind: onset, from: 30}, {kind: cron, meanOn: 3, meanOff: 10}} {
		w.high, w.low = 2, 0.5
		on := 0
		for i := range 1000 {
			switch x := w.next(i, rng); x {
			case 2:
				on++
			case 0.5:
			default:
				t.Fatalf("kind %d asks for %v", w.kind, x)
			}
		}
		if on == 0 {
			t.Errorf("kind %d is never on", w.kind)
		}
	}
}

// BenchmarkFleet prints how many times faster than real time 10,000 machines with fifty
// tasks each are played on two CPUs: a sample stands for a task's minute. The ratio by
// elapsed time is valid only on an idle machine; the ratio by the CPU time used, which
// assumes two free CPUs, also on a busy one.
func BenchmarkFleet(b *testing.B) {
	p := NewSimulator(1)
	s := Everyday()
	s.Crowded = true
	for _, rule := range []detect.Method{detect.CPI2, detect.Quell, detect.EvidenceMethod} {
		b.Run(string(rule), func(b *testing.B) {
			orders := make([]Order, 2*b.N)
			for i := range orders {
				orders[i] = Order{&s, uint64(i)}
			}
			st := setup(b, rule, 240)
			samples, before := 0, quelltest.CPUTime(b)
			b.ResetTimer()
			p.RunAll(orders, st, 2, func(c Case) { samples += c.Samples })
			const perMinute = 10_000 * 50 // samples
			b.ReportMetric(float64(samples)/b.Elapsed().Seconds()*60/perMinute, "x-real-time")
			b.ReportMetric(2*float64(samples)/(quelltest.CPUTime(b)-before).Seconds()*60/perMinute, "x-real-time-by-CPU")
		})
	}
}
