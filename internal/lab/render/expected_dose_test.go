package render

import (
	"encoding/csv"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/synthetic"
)

// The expectations of noisy-neighbour.yaml are its paper's numbers of m5, and each refers
// to exactly one value of that study's results.
func TestExpectationsOfNoisyNeighbour(t *testing.T) {
	read := func(file string) []byte {
		t.Helper()
		text, err := os.ReadFile("../../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	rows := func(file string) [][]string {
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
	x, err := ParseExpectations("noisy-neighbour.yaml", read("studies/expect/noisy-neighbour.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{} // expected values by name, as printed
	for _, r := range rows("aws_cpu_degradation.csv") {
		if r[0] == "m5" {
			want["full "+r[1]+" "+r[3]] = r[4]
			if r[3] == "busy" {
				want["gap at full "+r[1]+" over metal "] = "0"
			}
		}
	}
	for _, r := range rows("aws_metal_degradation.csv") {
		if r[0] == "m5" {
			want["full metal busy"], want["first half metal busy"], want["knee metal busy"] = r[4], r[5], r[6]
			want["first gap large over metal "] = r[7]
		}
	}
	want["first gap 12xlarge over metal "] = "36.7" // from the text of 5.2.1
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
	s, err := study.Parse("noisy-neighbour.yaml", read("studies/noisy-neighbour.yaml"), study.Known{Builtins: []string{"cpu-burn"}, Parsers: []string{"sysbench"}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Report.Expect != "expect/noisy-neighbour.yaml" {
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
				r.Parts[i].CPUs = []string{"0-95"}
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
	if len(results.DoseCosts) != 6 {
		t.Errorf("%d costs, want one for each environment", len(results.DoseCosts))
	}
	for _, g := range results.DoseGaps {
		if g.Full != 96 {
			t.Errorf("%s: %d threads at most, want all 96 CPUs", g.Of, g.Full)
		}
	}
}
