package render

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/synthetic"
)

// The expectations of noisy-neighbour.yaml and of those on rented machines are their paper's
// numbers of a family, and each refers to exactly one value of its study's results.
func TestExpectationsOfNoisyNeighbour(t *testing.T) {
	for _, c := range []struct {
		study, expect, family string
		gap                   string // the size of which the paper compares the first instance with metal
		cpus                  int
	}{
		{"noisy-neighbour", "noisy-neighbour", "m5", "large", 96},
		{"noisy-neighbour-cloud", "noisy-neighbour", "m5", "large", 96},
		{"noisy-neighbour-cloud-m6i", "noisy-neighbour-cloud-m6i", "m6i", "4xlarge", 128},
		{"noisy-neighbour-cloud-m6a", "noisy-neighbour-cloud-m6a", "m6a", "4xlarge", 192},
		{"noisy-neighbour-cloud-m6g", "noisy-neighbour-cloud-m6g", "m6g", "", 64},
	} {
		t.Run(c.study, func(t *testing.T) { expectationsOfFamily(t, c.study, c.expect, c.family, c.gap, c.cpus) })
	}
}

func expectationsOfFamily(t *testing.T, file, expect, family, gap string, cpus int) {
	x, err := ParseExpectations(expect, read(t, "studies/expect/"+expect+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{} // expected values by name, as printed
	state := func(s string) string {
		if family == "m6g" { // the paper has no idle neighbours of it
			return ""
		}
		return s
	}
	for _, r := range rows(t, "aws_cpu_degradation.csv") {
		if r[0] == family {
			want["full "+r[1]+" "+state(r[3])] = r[4]
			if family == "m5" && r[3] == "busy" {
				want["gap at full "+r[1]+" over metal "] = "0"
			}
		}
	}
	for _, r := range rows(t, "aws_metal_degradation.csv") {
		if r[0] == family {
			want["full metal "+state("busy")] = r[4]
			if r[5] != "" {
				want["first half metal busy"], want["knee metal busy"] = r[5], r[6]
				want["first gap "+gap+" over metal "] = r[7]
			}
		}
	}
	if family == "m5" {
		want["first gap 12xlarge over metal "] = "36.7" // from the text of 5.2.1
	}
	for _, e := range x.Expect {
		name := e.Quantity + " " + e.Cell["ve"] + e.At + " " + e.Cell["state"]
		v, err := strconv.ParseFloat(want[name], 64)
		if err != nil || v != *e.Value || e.Cell["work"] != "cpu-burn" || e.Part != "test" {
			t.Errorf("%s: %g, the paper has %q", name, *e.Value, want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("nothing is expected of %s", name)
	}

	// The study with synthetic environments has all values.
	s, err := study.Parse(file, read(t, "studies/"+file+".yaml"), study.Known{Builtins: []string{"cpu-burn", "primes"}, Parsers: []string{"sysbench"}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Report.Expect != "expect/"+expect+".yaml" {
		t.Errorf("the study expects %q", s.Report.Expect)
	}
	var runs []result.Run
	for _, c := range s.Cells() {
		if c.Level("work") != "cpu-burn" {
			continue
		}
		c.Warmup, c.For = 0, 4*time.Second
		for i := range c.Parts {
			p := &c.Parts[i]
			p.Environment.Truth = &study.Model{Base: 1e9, Slope: 0.01, Noise: 0.001}
		}
		for n := range 2 {
			r, _ := synthetic.Run(&c, synthetic.RunID{N: n, Seed: 1})
			for i := range r.Parts {
				r.Parts[i].CPUs = []string{fmt.Sprintf("0-%d", cpus-1)}
			}
			runs = append(runs, *r)
		}
	}
	results := analyse.Compute(s, runs)
	results.Simulated, results.Stamps = false, nil
	for _, c := range x.Against(&results) {
		if c.Found == nil && c.Expectation.Quantity != "knee" { // a knee exists only if it is found
			t.Errorf("%+v: %s", c.Expectation, c.Reason)
		}
	}
	if len(results.DoseCosts) != len(s.Factor("ve").Levels) {
		t.Errorf("%d costs, want one for each environment", len(results.DoseCosts))
	}
	for _, g := range results.DoseGaps {
		if g.Full != cpus {
			t.Errorf("%s: %d threads at most, want all %d CPUs", g.Of, g.Full, cpus)
		}
	}
}

// The expectations of the studies of instances' networks are the thesis' numbers, and each
// refers to exactly one value of its study's results.
func TestExpectationsOfCloudNetworks(t *testing.T) {
	want := map[string]float64{"one-flow cluster": 0, "one-flow spread": 0, "one-flow none": 0} // these have bounds
	for _, r := range rows(t, "aws_network_m5.csv") {
		tenants, _ := strconv.Atoi(r[3])
		gbps, _ := strconv.ParseFloat(r[4], 64)
		want[fmt.Sprintf("%s %d", r[0], tenants-1)] = math.Round(gbps * 1e9)
	}
	for _, name := range []string{"net-tenants-cloud", "net-placement-cloud"} {
		x, err := ParseExpectations(name, read(t, "studies/expect/"+name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := study.Parse(name, read(t, "studies/"+name+".yaml"), study.Known{Parsers: []string{"time"}})
		if err != nil {
			t.Fatal(err)
		}
		var runs []result.Run
		for _, c := range s.Cells() {
			for n := range 2 {
				r := result.Run{Cell: c, N: n, Verdict: result.Valid, Window: result.Window{To: time.Second}}
				for i := range c.Parts {
					r.Parts = append(r.Parts, result.Part{Name: c.Parts[i].Name(), Role: c.Parts[i].Role, Metric: 1e9 + float64(n), Iterations: []result.Iteration{{To: time.Second, Units: 1}}})
				}
				runs = append(runs, r)
			}
		}
		results := analyse.Compute(s, runs)
		for _, c := range x.Against(&results) {
			e := c.Expectation
			cell := e.Cell["size"] + e.Cell["tool"] + " " + e.At
			v, known := want[cell]
			if c.Found == nil || !known || e.Value != nil && *e.Value != v {
				t.Errorf("%s %s: %+v: %s", name, cell, e, c.Reason)
			}
			delete(want, cell)
		}
	}
	if len(want) > 0 {
		t.Errorf("nothing is expected of %v", want)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// rows are those of a reference's table, without its head.
func rows(t *testing.T, file string) [][]string {
	t.Helper()
	f, err := os.Open("../../../testdata/reference/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all[1:]
}
