package render

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/analyse"
)

// Expectations are the values that a study's results are compared with: a paper's table,
// or an earlier finding.
type Expectations struct {
	Version int           `key:"version" help:"format of this file; 1"`
	Source  string        `key:"source" help:"where the values are from, e.g. a paper and its table"`
	Stamps  []string      `key:"stamps" help:"stamps of results that the values apply to; results with other stamps are inconclusive"`
	Expect  []Expectation `key:"expect"`
}

// Expectation identifies one value and gives the bounds between which it is expected.
type Expectation struct {
	Name     string            `key:"name" help:"for people"`
	Analysis string            `key:"analysis" help:"as in the study file"`
	Quantity string            `key:"quantity" help:"as in the CSV of the results"`
	Cell     map[string]string `key:"cell" help:"levels of factors, enough to identify the value"`
	Part     string            `key:"part"`
	At       string            `key:"at"`
	// Value with Tolerance, or Above and Below, each open where it is not given; in the
	// unit of the quantity.
	Value     *float64 `key:"value"`
	Tolerance float64  `key:"tolerance" help:"on both sides of value, in its unit"`
	Above     *float64 `key:"above"`
	Below     *float64 `key:"below"`
	Source    string   `key:"source" help:"source of this value, if not the file's"`
}

// Missing implements keyed.Needing.
func (e *Expectation) Missing(seen map[string]bool) []string {
	names := slices.DeleteFunc([]string{"analysis", "quantity"}, func(n string) bool { return seen[n] })
	if !seen["value"] && !seen["above"] && !seen["below"] {
		names = append(names, "value")
	}
	if seen["value"] && !seen["tolerance"] {
		names = append(names, "tolerance")
	}
	return names
}

// ParseExpectations reads such a file. The error is a *keyed.InvalidError with every
// problem, or reports that the text is not YAML.
func ParseExpectations(file string, text []byte) (*Expectations, error) {
	var x Expectations
	r := keyed.Reader{File: file}
	if err := r.Document(&x, text); err != nil {
		return nil, fmt.Errorf("read expectations %s: %w", file, err)
	}
	if len(r.Problems) == 0 {
		if x.Version != 1 {
			r.Add("version", fmt.Sprint(x.Version), "1", r.Where("version"))
		}
		for i := range x.Expect {
			if e := &x.Expect[i]; !(e.Tolerance >= 0) {
				key := fmt.Sprintf("expect[%d].tolerance", i)
				r.Add(key, number(e.Tolerance), "0 or more", r.Where(key))
			} else if e.Value != nil && (e.Above != nil || e.Below != nil) {
				key := fmt.Sprintf("expect[%d].value", i)
				r.Add(key, number(*e.Value), "value with tolerance, or above and below", r.Where(key))
			}
		}
	}
	if len(r.Problems) > 0 {
		return nil, &keyed.InvalidError{What: "expectations " + file, Problems: r.Problems}
	}
	return &x, nil
}

// Outcome is the result of the comparison with an expectation.
type Outcome string

// The outcomes.
const (
	Reproduced    Outcome = "reproduced"     // the whole interval is within the bounds
	NotReproduced Outcome = "not reproduced" // the whole interval is outside
	Inconclusive  Outcome = "inconclusive"   // the results do not decide it
)

// Check is the comparison of one expectation with the results.
type Check struct {
	Expectation Expectation
	Source      string
	Low, High   float64 // the bounds, infinite where they are open
	Found       *Value  // nil where there is no such value, or several
	Outcome     Outcome
	Reason      string // why it is inconclusive
}

// Against compares results with the expectations. A value is reproduced only if its whole
// interval lies within the bounds, so a study with too few repetitions reproduces
// nothing.
func (x *Expectations) Against(results *analyse.Results) []Check {
	all := Values(results)
	strange := slices.DeleteFunc(stampsOf(results), func(s string) bool { return slices.Contains(x.Stamps, s) })
	var checks []Check
	for _, e := range x.Expect {
		c := Check{Expectation: e, Source: cmp.Or(e.Source, x.Source), Outcome: Inconclusive, Low: math.Inf(-1), High: math.Inf(1)}
		if e.Value != nil { // then neither of the others is given
			c.Low, c.High = *e.Value-e.Tolerance, *e.Value+e.Tolerance
		}
		if e.Above != nil {
			c.Low = *e.Above
		}
		if e.Below != nil {
			c.High = *e.Below
		}
		var found []*Value
		for i := range all {
			if e.matches(&all[i]) {
				found = append(found, &all[i])
			}
		}
		switch len(found) {
		case 0:
			c.Reason = "the results have no matching value"
		case 1:
			c.Found = found[0]
			c.judge()
			if len(strange) > 0 {
				c.Outcome, c.Reason = Inconclusive, "the expectation does not apply to results with stamps "+strings.Join(strange, ", ")
			}
		default:
			c.Reason = fmt.Sprintf("%d values match, e.g. %q and %q: give more levels", len(found), found[0].Name(), found[1].Name())
		}
		checks = append(checks, c)
	}
	return checks
}

// matches reports whether the expectation refers to a value.
func (e *Expectation) matches(v *Value) bool {
	if v.Analysis != e.Analysis || v.Quantity != e.Quantity || v.At != e.At || e.Part != "" && v.Part != e.Part {
		return false
	}
	levels := strings.Fields(v.Cell)
	for factor, value := range e.Cell {
		if !slices.Contains(levels, factor+"="+value) {
			return false
		}
	}
	return true
}

func (c *Check) judge() {
	value, low, high := float64(c.Found.Value), float64(c.Found.Low), float64(c.Found.High)
	switch {
	case math.IsNaN(value):
		c.Reason = "the value is unknown"
	case math.IsNaN(low) || math.IsNaN(high):
		c.Reason = "the value has no interval, and is outside the bounds"
		if value >= c.Low && value <= c.High {
			c.Reason = "the value has no interval, and is within the bounds"
		}
	case low >= c.Low && high <= c.High:
		c.Outcome = Reproduced
	case high < c.Low || low > c.High:
		c.Outcome = NotReproduced
	default:
		c.Reason = "the interval includes a bound: more repetitions are needed"
	}
}

// checks are the expectations with their outcomes.
func (r *Report) checks() page.Section {
	s := page.Section{ID: "expectations", Title: "Comparison with expectations"}
	t := page.Table{Caption: "Expectations", Head: []string{"expectation", "outcome", "expected", "found", "interval", "unit", "why", "source"}}
	counts := map[Outcome]int{}
	for _, c := range r.Checks {
		counts[c.Outcome]++
		name, expected := c.Expectation.Name, "from "+number(c.Low)+" to "+number(c.High)
		switch {
		case math.IsInf(c.Low, -1):
			expected = "below " + number(c.High)
		case math.IsInf(c.High, 1):
			expected = "above " + number(c.Low)
		}
		found, interval, unit := unknown, "", ""
		if v := c.Found; v != nil {
			found, unit = number(float64(v.Value)), v.Unit
			interval = between(analyse.Interval{Value: float64(v.Value), Low: float64(v.Low), High: float64(v.High), N: v.N})
			name = cmp.Or(name, v.Name())
		}
		name = cmp.Or(name, c.Expectation.Analysis+" "+c.Expectation.Quantity)
		t.Rows = append(t.Rows, page.Row(name, string(c.Outcome), expected, found, interval, unit, c.Reason, c.Source))
	}
	if len(t.Rows) > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("%d reproduced, %d not reproduced, %d inconclusive. Reproduced: the whole interval is within the bounds. Not reproduced: the whole interval is outside.",
			counts[Reproduced], counts[NotReproduced], counts[Inconclusive]))
		s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Table: t}))
	}
	return s
}
