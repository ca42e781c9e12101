package render

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

func interfering(low, value, high float64) *analyse.Results {
	x := analyse.Results{}
	for _, place := range []string{"per-chip", "per-thread"} {
		x.Interferences = append(x.Interferences, analyse.Interference{Role: "fg", Levels: []study.Level{{Factor: "ve", Value: "kvm"}, {Factor: "placement", Value: place}},
			Interval: analyse.Interval{Value: value, Low: low, High: high, Level: 0.95, N: 3}})
	}
	return &x
}

func TestExpectations(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		name    string
		results *analyse.Results
		expect  string
		want    Outcome
		why     string
	}{
		{"within", interfering(38, 40, 42), "value: 41, tolerance: 3", Reproduced, ""},
		{"outside, above", interfering(45, 46, 47), "value: 41, tolerance: 3", NotReproduced, ""},
		{"outside, below", interfering(-1, 0, 1), "above: 1.5", NotReproduced, ""},
		{"across a bound", interfering(30, 40, 50), "value: 41, tolerance: 3", Inconclusive, "more repetitions"},
		{"sign", interfering(-9, -4, -1), "below: 0", Reproduced, ""},
		{"no interval", interfering(nan, 40, nan), "value: 41, tolerance: 3", Inconclusive, "no interval, and is within"},
		{"no interval, outside", interfering(nan, 50, nan), "value: 41, tolerance: 3", Inconclusive, "no interval, and is outside"},
		{"not known", interfering(nan, nan, nan), "value: 41, tolerance: 3", Inconclusive, "unknown"},
		{"nothing there", &analyse.Results{}, "value: 41, tolerance: 3", Inconclusive, "no matching value"},
		{"simulated", &analyse.Results{Simulated: true, Interferences: interfering(38, 40, 42).Interferences}, "value: 41, tolerance: 3", Inconclusive, "simulated"},
		{"another accelerator", &analyse.Results{Stamps: []string{"accel=tcg"}, Interferences: interfering(38, 40, 42).Interferences}, "value: 41, tolerance: 3", Inconclusive, "accel=tcg"},
	} {
		x, err := ParseExpectations("e.yaml", []byte("version: 1\nsource: table Id\nexpect:\n  - {name: n, analysis: interference, quantity: metric, cell: {placement: per-thread}, "+c.expect+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		got := x.Against(c.results)
		if len(got) != 1 || got[0].Outcome != c.want || !strings.Contains(got[0].Reason, c.why) || (c.why == "") != (got[0].Reason == "") || got[0].Source != "table Id" {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	x := Expectations{Stamps: []string{"simulated"}, Expect: []Expectation{{Analysis: "interference", Quantity: "metric", Cell: map[string]string{"ve": "kvm"}}}}
	results := interfering(1, 2, 3)
	results.Simulated = true
	if got := x.Against(results)[0]; got.Outcome != Inconclusive || !strings.Contains(got.Reason, "2 values") {
		t.Errorf("two values are meant: %+v", got)
	}
	x.Expect[0].Cell["placement"] = "per-chip"
	if got := x.Against(results)[0]; got.Outcome != Reproduced {
		t.Errorf("an expectation of simulated results: %+v", got)
	}
}

func TestExpectationsAreStrict(t *testing.T) {
	text := `
version: 2
expect:
  - {analysis: a, quantity: q, value: 1, tolerance: 1, below: 3}
  - {analysis: a, quantity: q, value: 1}
  - {analysis: a, quantitty: q, above: 1}
`
	_, err := ParseExpectations("e.yaml", []byte(text))
	var invalid *keyed.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	for _, want := range []string{"e.yaml:5", "quantitty", "tolerance"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %s", want, err)
		}
	}
	for _, text := range []string{"version: 2\n", "version: 1\nexpect: [{analysis: a, quantity: q, value: 1, tolerance: 1, below: 3}]\n",
		"version: 1\nexpect: [{analysis: a, quantity: q, value: 1, tolerance: -1}]\n", "{"} {
		if _, err := ParseExpectations("e.yaml", []byte(text)); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
}

// No two values share a name; otherwise a difference would compare the wrong ones.
func TestValuesHaveNames(t *testing.T) {
	for _, text := range []string{stairs, pairs} {
		seen := map[string]bool{}
		all := Values(&simulate(t, text).Results)
		for _, v := range all {
			if n := v.Name(); seen[n] {
				t.Errorf("%s is there twice", n)
			} else {
				seen[n] = true
			}
		}
		if len(all) < 10 {
			t.Errorf("%d values", len(all))
		}
	}
}

// CSV and JSON lines contain the same numbers, to the last digit.
func TestTablesForPrograms(t *testing.T) {
	r := simulate(t, stairs)
	var c, j bytes.Buffer
	if err := errors.Join(CSV(&c, r), JSONL(&j, r)); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(c.String(), "# simulated\n") {
		t.Error("the CSV does not say that it is simulated")
	}
	reader := csv.NewReader(&c)
	reader.Comment = '#'
	rows, err := reader.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&j)
	var head struct{ Stamps []string }
	if err := d.Decode(&head); err != nil || len(head.Stamps) != 1 {
		t.Fatal(head, err)
	}
	want := Values(&r.ordered().Results)
	if len(rows) != len(want)+1 {
		t.Fatalf("%d rows of %d values", len(rows), len(want))
	}
	for i, v := range want {
		var got Value
		if err := d.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if rows[i+1][6] != exactly(v.Value) || rows[i+1][2] != v.Cell || exactly(got.Value) != exactly(v.Value) || exactly(got.Low) != exactly(v.Low) {
			t.Fatalf("%v and %+v, want %+v", rows[i+1], got, v)
		}
	}
}

func TestDiff(t *testing.T) {
	r := simulate(t, pairs)
	same, err := Compare(r, r, false)
	if err != nil || len(same.Changes) == 0 || len(same.OnlyEarlier)+len(same.OnlyLater) > 0 {
		t.Fatalf("%v, %+v", err, same)
	}
	for _, c := range same.Changes {
		if s := c.Direction; s != "not significant" && s != "unknown" {
			t.Errorf("%s is %s than itself", c.Earlier.Name(), s)
		}
	}
	worse := simulate(t, strings.Replace(pairs, "slope: 0.3", "slope: 0.6", 1))
	worse.Machines[0].Facts[0].Value = "6.12.0"
	d, err := Compare(r, worse, false)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, c := range d.Changes {
		seen[c.Earlier.Name()] = c.Direction
	}
	want := map[string]string{"degradation percent placement=near fg a next to b": "higher", "degradation beside placement=near fg a next to b": "lower", "degradation percent placement=far fg a next to b": "not significant", "noise floor": "unknown"}
	for name, change := range want {
		if seen[name] != change {
			t.Errorf("%s: %s, want %s", name, seen[name], change)
		}
	}
	var b bytes.Buffer
	if err := d.Markdown(&b); err != nil || !strings.Contains(b.String(), "6.12.0") || !strings.Contains(b.String(), "higher") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// Half-widths add in squares: ±3 and ±4 give ±5.
func TestDifference(t *testing.T) {
	a, b := Value{Value: 10, Low: 7, High: 13, Level: 0.95}, Value{Value: 20, Low: 16, High: 24, Level: 0.95}
	got := difference(&a, &b)
	if d := cmp.Diff([]float64{10, 5, 15}, []float64{got.Value, got.Low, got.High}); d != "" {
		t.Error(d)
	}
	b.Level = 0.9
	if c := change(a, b); c.Direction != "unknown" || !math.IsNaN(c.Ratio.Low) || c.Ratio.Value != 2 {
		t.Errorf("intervals of two levels were mixed: %+v", c)
	}
	// Of logarithms: a factor of 1.25 to each side of both is one of 1.25^√2 = 1.371.
	a, b = Value{Value: 10, Low: 8, High: 12.5, Level: 0.95}, Value{Value: 20, Low: 16, High: 25, Level: 0.95}
	if r := ratio(&a, &b); r.Value != 2 || math.Abs(r.Low-2/1.37106) > 1e-4 || math.Abs(r.High-2*1.37106) > 1e-4 {
		t.Errorf("%+v", r)
	}
	for _, bad := range []Value{{Value: 0, Low: -1, High: 1, Level: 0.95}, {Value: -2, Low: -3, High: -1, Level: 0.95}} {
		if r := ratio(&bad, &b); !math.IsNaN(r.Value) || !math.IsNaN(r.Low) {
			t.Errorf("ratio to %v: %+v", bad.Value, r)
		}
	}
}

func TestDiffDoesNotMixStamps(t *testing.T) {
	real, fake := &Report{Study: &study.Study{Name: "a"}}, &Report{Study: &study.Study{Name: "b"}, Results: analyse.Results{Simulated: true}}
	if _, err := Compare(real, fake, false); !errors.Is(err, ErrStamps) || !strings.Contains(err.Error(), "none, and simulated") {
		t.Error(err)
	}
	d, err := Compare(real, fake, true)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := d.Markdown(&b); err != nil || !strings.Contains(b.String(), "| stamps | none | simulated |") {
		t.Errorf("forced, and does not say so: %s", b.String())
	}
}

func FuzzExpectations(f *testing.F) {
	f.Add("version: 1\nexpect: [{analysis: a, quantity: q, value: 1, tolerance: 1}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		x, err := ParseExpectations("e", []byte(text))
		if err != nil {
			return
		}
		for _, c := range x.Against(interfering(1, 2, 3)) {
			if c.Outcome != Inconclusive && c.Found == nil {
				t.Fatalf("%+v", c)
			}
		}
	})
}
