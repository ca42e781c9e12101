package render

import (
	"encoding/csv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

// The shipped expectations: each file has every value of its paper's table, as printed,
// and refers to values that its study's results will have.
func TestShippedExpectationsAreThePapers(t *testing.T) {
	read := func(name string) (*Expectations, *study.Study) {
		t.Helper()
		file := filepath.Join("../../../studies/expect", name)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		x, err := ParseExpectations(file, text)
		if err != nil {
			t.Fatal(err)
		}
		file = filepath.Join("../../../studies", name)
		if text, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		s, err := study.Parse(file, text, study.Known{Parsers: []string{"iterations", "time"}})
		if err != nil {
			t.Fatal(err)
		}
		if s.Report.Expect != "expect/"+name {
			t.Errorf("%s: expects %q", name, s.Report.Expect)
		}
		return x, s
	}
	table := func(name string) [][]string {
		t.Helper()
		f, err := os.Open(filepath.Join("../../../testdata/reference", name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := csv.NewReader(f)
		rows, err := r.ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	value := func(text string) float64 {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}

	x, s := read("cpu-pinning.yaml")
	rows := table("pinning_interference.csv")[1:]
	cells := map[string]bool{}
	for _, c := range s.Cells() {
		cells[words(c.Levels)] = c.Kind == study.Main || cells[words(c.Levels)]
	}
	if len(x.Expect) != len(rows) {
		t.Fatalf("%d expectations for %d values", len(x.Expect), len(rows))
	}
	for i, r := range rows {
		e := x.Expect[i]
		got := []string{e.Cell["ve"], e.Cell["placement"], e.Cell["fgw"], e.Cell["bgw"]}
		for k := range got {
			if got[k] != r[k] {
				t.Errorf("expectation %d is of %q, the table's of %q", i, got, r[:4])
			}
		}
		if *e.Value != value(r[4]) || e.Part != "fg" {
			t.Errorf("%q: %g, the table has %s", got, *e.Value, r[4])
		}
		if name := "ve=" + r[0] + " fgw=" + r[2] + " bgw=" + r[3] + " placement=" + r[1]; !cells[name] {
			t.Errorf("the study has no cell %q", name)
		}
	}

	// Tables 3 and 4 are the study's sets, and table 4's alone count for figure 4.
	x, s = read("vm-mapping.yaml")
	var sets, figure4 []string
	for _, r := range table("kvm_table3_workloads.csv")[1:] {
		if n := len(sets); n == 0 || !strings.HasPrefix(sets[n-1], r[0]+" ") {
			sets = append(sets, r[0])
		}
		sets[len(sets)-1] += " " + r[1]
	}
	for _, r := range table("kvm_table4_workloads.csv")[1:] {
		sets, figure4 = append(sets, strings.Join(r, " ")), append(figure4, r[0])
	}
	for i, set := range s.Factors[0].Sets {
		got := set.Name
		for _, role := range []string{"vm1", "vm2", "vm3", "vm4"} {
			got += " " + set.Values[role]
		}
		if i >= len(sets) || got != sets[i] {
			t.Errorf("set %d is %q, the tables have %q", i, got, sets)
		}
	}
	for _, a := range s.Analysis {
		if a.Kind == "mapping" && a.Options["headline"] != strings.Join(figure4, " ") {
			t.Errorf("figure 4 is of %q", a.Options["headline"])
		}
	}

	// Section 5's numbers for figure 4, and the two counts of section 4.
	at := map[string]string{"min": "least of sets", "max": "largest of sets", "arithmetic_mean": "mean of sets", "geometric_mean": "geometric mean of sets"}
	moves, _ := read("vm-migration.yaml")
	rows = table("kvm_headline.csv")[1:]
	if len(x.Expect)+len(moves.Expect) != len(rows) {
		t.Fatalf("%d and %d expectations for %d values", len(x.Expect), len(moves.Expect), len(rows))
	}
	for i, r := range rows {
		var want Expectation
		if quantity, which, ok := strings.Cut(r[0], "_degradation_"); ok {
			want = Expectation{Analysis: "mapping", Quantity: quantity, At: at[which]}
		} else {
			direction := strings.TrimSuffix(strings.TrimPrefix(r[0], "migrations_"), "_8vm_1min")
			want = Expectation{Analysis: "migration", Quantity: direction + " in a minute", Part: analyse.AllParts, Cell: map[string]string{"placement": "default"}}
		}
		e := append(slices.Clone(x.Expect), moves.Expect...)[i]
		if e.Analysis != want.Analysis || e.Quantity != want.Quantity || e.At != want.At || e.Part != want.Part || !maps.Equal(e.Cell, want.Cell) || *e.Value != value(r[1]) {
			t.Errorf("expectation %d is %+v, want %s of %+v", i, e, r[1], want)
		}
	}
	// A study's results have values with these names.
	results := &analyse.Results{Headline: &analyse.Headline{}, Migrations: []analyse.MigrationStats{{Part: analyse.AllParts, Levels: []study.Level{{Factor: "placement", Value: "default"}}}}}
	for _, c := range append(x.Against(results), moves.Against(results)...) {
		if c.Found == nil {
			t.Errorf("no value of the results is meant by %+v", c.Expectation)
		}
	}

	x, s = read("vm-correlation.yaml")
	event := map[string]string{"degradation": "degradation", "L1": "l1d-misses", "L2": "l2-misses", "LLC": "llc-misses",
		"DTLB": "dtlb-misses", "IC": "instructions", "Clk_c": "cycles", "Clk_r": "ref-cycles"}
	rows = table("kvm_table6_correlation.csv")
	n := 0
	for _, r := range rows[1:] {
		for k, text := range r[1:] {
			if text == "" {
				continue
			}
			a, b := event[rows[0][k+1]], event[r[0]]
			if b < a && a != "degradation" { // the order of names in Correlations
				a, b = b, a
			}
			e := x.Expect[n]
			if n++; e.At != a+" "+b || *e.Value != value(text) || e.Cell["prefetching"] != "off" {
				t.Errorf("expectation %d: %q %g, the table has %s for %q", n, e.At, *e.Value, text, a+" "+b)
			}
		}
	}
	if n != len(x.Expect) {
		t.Errorf("%d expectations for %d values", len(x.Expect), n)
	}
	for short, name := range event {
		if short == "degradation" {
			continue
		}
		found := false
		for _, e := range s.Observe.Events {
			found = found || e == name
		}
		if !found {
			t.Errorf("the study does not count %s", name)
		}
	}
}
