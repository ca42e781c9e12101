package analyse

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// aws reads a table of paper 002; the keys are its key columns, joined.
func aws(t *testing.T, name string, keys int) map[string]map[string]float64 {
	t.Helper()
	f, err := os.Open("../../../testdata/reference/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]map[string]float64{}
	for _, row := range rows[1:] {
		key := ""
		for i := range keys {
			key += row[i] + " "
		}
		table[key] = map[string]float64{}
		for i := keys; i < len(row); i++ {
			if v, err := strconv.ParseFloat(row[i], 64); err == nil {
				table[key][rows[0][i]] = v
			}
		}
	}
	return table
}

// The paper's sizes of m5 and its metal, with the values of its tables: the loss of
// each over itself alone and over metal, and that all meet when the host is full. The
// 12xlarge loses nothing over itself alone and 36.7 % over metal.
func TestGapsOfThePaper(t *testing.T) {
	metal := aws(t, "aws_metal_degradation.csv", 1)["m5 "]
	const first, host = 36.7, 96 // percent, logical CPUs (5.2.1)
	half := 1 + metal["first_half_degradation_percent"]/100
	full := 1 + metal["full_degradation_percent"]/100
	knee := half * (1 + metal["knee_degradation_percent"]/100)
	var runs []result.Run
	take := func(ve string, n, threads int, seconds float64) {
		for rep, e := range []float64{-1e-4, 0, 1e-4} {
			r := dosed(ve, "busy", n, threads, rep, seconds+e)
			for i := range r.Cell.Parts {
				r.Cell.Parts[i].Environment.Driver = study.QEMU
				if ve == "metal" {
					r.Cell.Parts[i].Environment.Driver = study.Bare
				}
			}
			for i := range r.Parts {
				r.Parts[i].CPUs = []string{"0-47,48-95"}
			}
			runs = append(runs, r)
		}
	}
	for n, seconds := range map[int]float64{0: 1, 23: half, 24: knee, 47: full} { // threads in twos
		take("metal", n, 2, seconds)
	}
	sizes := map[string]struct {
		threads int
		lone    float64 // seconds
	}{
		"large":    {2, full / (1 + aws(t, "aws_cpu_degradation.csv", 4)["m5 large 48 busy "]["degradation_percent"]/100)},
		"12xlarge": {48, half * (1 + first/100)},
	}
	for name, s := range sizes {
		take(name, 0, s.threads, s.lone)
		take(name, host/s.threads-1, s.threads, full)
	}
	gaps := map[string]DoseGap{}
	for _, g := range DoseGaps(runs, DoseOptions{Count: "neighbours", State: "state", VE: "ve", Base: "metal", Margin: 2}) {
		gaps[g.Of] = g
	}
	check := func(what string, got Interval, want, within float64) {
		t.Helper()
		if math.Abs(got.Value-want) > within || !(got.Low < got.Value && got.Value < got.High) {
			t.Errorf("%s: %+v, want %g", what, got, want)
		}
	}
	large, twelve := gaps["large"], gaps["12xlarge"]
	check("the first large over metal", large.First, 35.4, 0.1) // the paper says 36.6: its metal's percentages are rounded
	check("a large beside 47 over itself alone", large.OverOwnLowest, 13, 0.01)
	check("the same over metal's two threads", large.OverBaseLowest, 53, 0.01)
	check("the first 12xlarge over metal", twelve.First, first, 0.05)
	check("a 12xlarge beside another over itself alone", twelve.OverOwnLowest, 100*(full/(half*(1+first/100))-1), 0.01)
	for _, g := range gaps {
		if g.Meeting != Equivalent || g.Full != host || g.AtFull.Value > 0.1 {
			t.Errorf("%s at full: %+v", g.Of, g)
		}
	}
	// The cores of a machine are derived from its own threads, not from those of
	// guests, which a hypervisor places anywhere.
	ds, _ := DoseResponse(runs, DoseOptions{Count: "neighbours", State: "state", VE: "ve", Base: "metal"})
	for _, d := range ds {
		switch c := d.Cores; {
		case d.Levels[0].Value != "metal" && c != nil:
			t.Errorf("%v: %+v", d.Levels, c)
		case d.Levels[0].Value == "metal" && (c == nil || c.CPUs != 96 || c.Least != 48 || c.Most != 49 || c.Knee.After != 50 || c.PerCore() != 0):
			t.Errorf("metal: %+v", c)
		}
	}
}

func TestMeetings(t *testing.T) {
	for _, c := range []struct {
		low, high, margin float64
		want              Equivalence
	}{
		{-1, 1, 2, Equivalent}, {-3, 1, 2, Undecided}, {0.5, 1.5, 2, Equivalent}, {3, 5, 2, Different}, {-5, -3, 2, Different}, {1, 3, 2, Undecided},
		{0, 0, 0, Undecided}, {1, 2, 0, Different}, {math.NaN(), math.NaN(), 2, Undecided},
	} {
		if got := equivalence(Interval{Low: c.low, High: c.high}, c.margin); got != c.want {
			t.Errorf("[%g, %g] within %g: %s, want %s", c.low, c.high, c.margin, got, c.want)
		}
	}
}

// Threads are added one by one in a guest of 8 virtual CPUs on 4 cores: the fifth is
// the first to share (figure 5.7 of the paper, 27 %).
func TestCoresByTheKnee(t *testing.T) {
	grow := func(ve string, driver study.Driver, cpus string, vcpus int, times ...float64) []result.Run {
		var runs []result.Run
		for i, seconds := range times {
			for rep, e := range []float64{-1e-3, 0, 1e-3} {
				r := dosed(ve, "busy", 0, 1, rep, seconds+e)
				r.Cell.Levels = []study.Level{{Factor: "ve", Value: ve}, {Factor: "threads", Value: strconv.Itoa(i + 1)}}
				p := &r.Cell.Parts[0]
				p.Environment.Driver, p.Environment.CPUs, p.Workload.Threads = driver, vcpus, i+1
				if cpus != "" {
					r.Parts[0].CPUs = []string{cpus}
				}
				runs = append(runs, r)
			}
		}
		return runs
	}
	for _, c := range []struct {
		name  string
		runs  []result.Run
		want  Cores // without the knee
		after int   // of the knee, 0 for none
		per   float64
	}{
		{"a guest of 8 on 4 cores", grow("vm", study.QEMU, "0-95", 8, 1, 1, 1.01, 1.01, 1.28, 1.29, 1.30, 1.31), Cores{CPUs: 8, Least: 4, Most: 4}, 5, 2},
		{"four CPUs with a core each", grow("metal", study.Bare, "0-3", 0, 1, 1, 1.001, 1.003), Cores{CPUs: 4, Least: 4, Most: 4}, 0, 1},
		{"more threads than CPUs take turns", grow("metal", study.Bare, "0,1", 0, 1, 1, 1.5, 2), Cores{CPUs: 2, Least: 2, Most: 2}, 0, 1},
		{"two CPUs of one core", grow("metal", study.Bare, "0-1", 0, 1, 1.4, 2.1, 2.8), Cores{CPUs: 2, Least: 1, Most: 1}, 2, 2},
		{"no more than half of the CPUs tried", grow("metal", study.Bare, "0-7", 0, 1, 1, 1, 1), Cores{CPUs: 8, Least: 4, Most: 8}, 0, 0},
		{"on another host", grow("metal", study.Bare, "", 0, 1, 1, 1.3), Cores{Least: 2, Most: 2}, 3, 0},
		{"a turbo's small step", grow("metal", study.Bare, "0-3", 0, 1, 1.015, 1.016, 1.017), Cores{CPUs: 4, Least: 4, Most: 4}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds, _ := DoseResponse(c.runs, DoseOptions{Count: "threads", State: "state", VE: "ve", Base: "metal"})
			if len(ds) != 1 || ds[0].Cores == nil {
				t.Fatalf("%+v", ds)
			}
			got, after := *ds[0].Cores, 0
			if got.Knee != nil {
				after = got.Knee.After
			}
			per := got.PerCore()
			got.Knee = nil
			if d := cmp.Diff(c.want, got); d != "" || after != c.after || per != c.per {
				t.Errorf("knee at %d, %g CPUs a core: %s", after, per, d)
			}
		})
	}
}

// The more expensive CPU gives cheaper work if it does more. For a workload that counts
// by thread an idle CPU is paid for too.
func TestCostOfWork(t *testing.T) {
	prices := map[string]study.Price{"large": {Amount: 0.05, Currency: "USD"}, "metal": {Amount: 0.06, Currency: "USD"}, "given": {}}
	var runs []result.Run
	for _, ve := range []string{"large", "metal", "given"} {
		for n, seconds := range []float64{1, 2} {
			for rep, e := range []float64{0.99, 1, 1.01} {
				if ve == "metal" {
					seconds = 1.5
				}
				r := dosed(ve, "busy", n, 2, rep, e*seconds)
				p := &r.Cell.Parts[0]
				p.Workload.Metric.Unit = "s/addition"
				if ve == "large" { // two threads, four CPUs
					p.Workload.Builtin, p.Workload.Threads, p.Environment.CPUs = "cpu-burn", 2, 4
				}
				runs = append(runs, r)
				idle := dosed(ve, "idle", n, 2, rep, e)
				runs = append(runs, idle)
			}
		}
	}
	o := DoseOptions{Count: "neighbours", State: "state", VE: "ve", Base: "metal", Price: func(p *study.Part) study.Price { return prices[p.Environment.Name] }}
	var got []string
	for _, c := range DoseCosts(runs, o) {
		if !(c.Lone.Low < c.Lone.Value && c.Lone.Value < c.Lone.High && c.Full.Low < c.Full.High) {
			t.Errorf("intervals of %+v", c)
		}
		got = append(got, fmt.Sprintf("%s %d CPUs %s: %.0f to %.0f, %.0f", c.Price, c.CPUs, c.Unit, c.Lone.Value, c.Full.Value, c.OverBase.Value))
	}
	// 3600 s ÷ 0.05 USD = 72,000 CPU-seconds per USD; half of the CPUs of large work.
	// Of metal, whose command is measured as a whole, both CPUs are paid: 30,000.
	want := []string{"0.05 USD 4 CPUs addition/USD: 36000 to 18000, -10", "0.06 USD 2 CPUs addition/USD: 20000 to 20000, NaN"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if cs := DoseCosts(runs, DoseOptions{Count: "neighbours", State: "state", VE: "ve", Base: "metal"}); cs != nil {
		t.Errorf("without prices: %+v", cs)
	}
}
