package render

import (
	"encoding/csv"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Figures 6.1 to 6.3: tenants in the study's order, in Mbit/s, with how far they are
// below their baseline and how their runs lie relative to the burst.
func TestTenants(t *testing.T) {
	about := func(v float64) analyse.Interval {
		return analyse.Interval{Value: v, Low: 0.9 * v, High: 1.1 * v, Level: 0.95, Method: "t over runs", N: 3}
	}
	nothing := analyse.Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN()}
	point := func(n int, window string, each, fair, below float64) analyse.TenantPoint {
		p := analyse.TenantPoint{Tenants: n, Window: window, Offered: about(40e6), Each: about(each), Sum: about(float64(n) * each), OfHost: about(float64(n) * each / 100e6), Fair: stat.Float(fair),
			BelowBaseline: about(below), BelowBurst: nothing, Evenness: about(0.9), Lost: about(0.25),
			Box: analyse.Box{Low: stat.Float(0.8 * each), Q1: stat.Float(0.9 * each), Median: stat.Float(each), Q3: stat.Float(1.1 * each), High: stat.Float(1.2 * each), N: 3 * n}}
		for range n {
			p.Share = append(p.Share, analyse.TenantShare{Part: "tenant/" + string(rune('0'+len(p.Share))), Rate: about(each)})
		}
		return p
	}
	levels := func(v string) []study.Level { return []study.Level{{Factor: "credit", Value: v}} }
	r := &Report{Study: &study.Study{Name: "net", Analysis: []study.Analysis{{Kind: "net-tenants"}}, Factors: []study.Factor{{Name: "tenants", Levels: []string{"0", "6"}}, {Name: "credit", Levels: []string{"full", "spent"}}}}}
	r.Results.Tenants = &analyse.Tenants{
		Doses: []analyse.TenantDose{
			{Levels: levels("spent"), Host: 100e6, Baseline: 20e6, Burst: 40e6, Shortfall: 50.0 / 3, Points: []analyse.TenantPoint{point(6, analyse.BurstAfter, 16e6, 50e6/3, 20)}},
			{Levels: levels("full"), Host: 100e6, Baseline: 20e6, Burst: 40e6, Shortfall: -400, Points: []analyse.TenantPoint{point(1, analyse.BurstWithin, 40e6, 40e6, -100)}},
		},
		Latencies: []analyse.Latency{
			{Levels: []study.Level{{Factor: "tenants", Value: "6"}, {Factor: "credit", Value: "full"}}, Part: "probe", Tenants: 6, Bandwidth: about(100e6), Mean: about(0.02), P50: about(0.021), P90: about(0.022), P99: about(0.023), Max: about(0.03), Lost: about(0.4), Sent: 9000},
			{Levels: []study.Level{{Factor: "tenants", Value: "0"}, {Factor: "credit", Value: "full"}}, Part: "probe", Bandwidth: about(0), Mean: about(50e-6), P50: about(40e-6), P90: about(60e-6), P99: about(90e-6), Max: about(0.001), Lost: about(0), Sent: 9000},
		},
	}
	s := r.ordered().tenants(nil)
	if len(s.Exhibits) != 3 {
		t.Fatalf("%d exhibits", len(s.Exhibits))
	}
	if got, want := tableText(s.Exhibits[0]), "credit=full|1|within|40|40|[36, 44]|32|36, 40, 44|48|40|-100 [-90, -110]|–|40 [36, 44]|40 %|0.9|25 %|\n"+
		"credit=spent|6|after|40|16|[14.4, 17.6]|12.8|14.4, 16, 17.6|19.2|16.7|20 [18, 22]|–|96 [86.4, 106]|96 %|0.9|25 %|\n"; got != want {
		t.Errorf("throughput:\n%s want\n%s", got, want)
	}
	// One plot of the sums, and for each dose one with lines and one with boxes.
	if n := len(s.Exhibits[0].Plots); n != 5 {
		t.Errorf("%d plots", n)
	}
	if n := len(s.Exhibits[1].Table.Rows); n != 7 {
		t.Errorf("%d tenants by themselves", n)
	}
	if got, want := tableText(s.Exhibits[2]), "tenants=0 credit=full|probe|0|0.05|[0.045, 0.055]|0.04|[0.036, 0.044]|0.06|[0.054, 0.066]|0.09|[0.081, 0.099]|1|0 %|9000|\n"; !strings.HasPrefix(got, want) {
		t.Errorf("latency:\n%s want first\n%s", got, want)
	}
	// The shortfall is stated only where there is one, with the number of tenants
	// measured.
	if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, "the baselines of 6 tenants sum to 120 Mbit/s; the link of 100 Mbit/s is 16.7 % too small; the tenants were 20 [18, 22] % below") || strings.Contains(notes, "1 tenant sum") {
		t.Error(notes)
	}
	names := map[string]bool{}
	for _, v := range Values(&r.Results) {
		if names[v.Name()] {
			t.Errorf("two values are %s", v.Name())
		}
		names[v.Name()] = true
	}
	for _, want := range []string{"net-tenants below baseline credit=spent 6", "net-tenants round trip tenants=0 credit=full probe p99", "net-tenants tenant credit=spent tenant/5 6"} {
		if !names[want] {
			t.Errorf("no value %s among %d", want, len(names))
		}
	}
	if s := (&Report{Study: r.Study}).tenants(nil); len(s.Exhibits) != 0 {
		t.Error("exhibits of nothing")
	}
	// Many tenants have boxes and no lines.
	d := &r.Results.Tenants.Doses[0]
	d.Points = append(d.Points, point(48, analyse.BurstAfter, 2e6, 2e6, 90))
	if n := len(tenantPoints(r.Results.Tenants).Plots); n != 4 {
		t.Errorf("%d plots with 48 tenants", n)
	}
}

// The expectations of net-tenants-small.yaml are the thesis' numbers: its throughputs as
// shares of the burst, the baseline and the link. The results have values with these
// names.
func TestExpectedTenants(t *testing.T) {
	const dir = "../../../studies/"
	text, err := os.ReadFile(dir + "net-tenants-small.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := study.Parse("net-tenants-small.yaml", text, study.Known{Parsers: []string{"iperf3", "sockperf"}})
	if err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(dir + s.Report.Expect); err != nil {
		t.Fatal(err)
	}
	x, err := ParseExpectations(s.Report.Expect, text)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("../../../testdata/reference/aws_network_m5.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{}
	for _, r := range rows[1:] {
		if r[0] != "4xlarge" {
			continue
		}
		n, err1 := strconv.ParseFloat(r[3], 64)
		each, err2 := strconv.ParseFloat(r[4], 64)
		if err1 != nil || err2 != nil {
			t.Fatal(r)
		}
		want["below burst "+r[3]], want["below baseline "+r[3]], want["of the link "+r[3]] = 100*(1-each/10), 100*(1-each/5), n*each/25
	}
	d := analyse.TenantDose{Levels: []study.Level{{Factor: "sends", Value: "all"}, {Factor: "credit", Value: "full"}}}
	for n := range 6 {
		d.Points = append(d.Points, analyse.TenantPoint{Tenants: n + 1})
	}
	for _, c := range x.Against(&analyse.Results{Tenants: &analyse.Tenants{Doses: []analyse.TenantDose{d}}}) {
		e := c.Expectation
		v, ok := want[e.Quantity+" "+e.At]
		if c.Found == nil || !ok || math.Abs(*e.Value-v) > 0.0006*math.Max(1, math.Abs(v)) {
			t.Errorf("%s: %g, the thesis has %.4g", e.Name, *e.Value, v)
		}
	}
	// The study's runs with full credit end within the burst; in all others the burst
	// ends within the warm-up.
	for _, c := range s.Cells() {
		for _, p := range c.Parts {
			b := p.Environment.Bandwidth
			if p.Role != "tenant" {
				continue
			}
			over := c.Warmup + c.For
			if full := c.Level("credit") == "full"; full != (b.BurstTime() > 2*over) || !full && b.BurstTime() > c.Warmup {
				t.Errorf("%s: a credit lasts %s, a run %s", &c, b.BurstTime(), over)
			}
		}
	}
}
