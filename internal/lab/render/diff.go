package render

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/analyse"
)

// ErrStamps reports that the results of two studies are not comparable, e.g. one is
// simulated: their difference would not be caused by the machines.
var ErrStamps = errors.New("the results have different stamps")

// Diff is the difference between the results of two folders.
type Diff struct {
	Earlier *Report  `json:"-"`
	Later   *Report  `json:"-"`
	Study   string   `json:"study"`
	Stamps  []string `json:"stamps,omitempty"`
	Changes []Change `json:"changes"`
	// OnlyEarlier and OnlyLater are values that the other folder does not have.
	OnlyEarlier []Value `json:"only_earlier"`
	OnlyLater   []Value `json:"only_later"`
}

// Change is one value that both have. The two are treated as independent.
type Change struct {
	Earlier Value `json:"earlier"`
	Later   Value `json:"later"`
	// Direction is "higher", "lower", "not significant", or "unknown" where a value has no
	// interval.
	Direction string `json:"direction"`
	// Ratio is later ÷ earlier. Its interval adds the logarithms' half-widths in squares;
	// NaN where a value or a bound is not above 0.
	Ratio analyse.Interval `json:"ratio"`
	// Difference is later − earlier. Its interval adds the half-widths in squares.
	Difference analyse.Interval `json:"difference"`
}

func change(earlier, later Value) Change {
	c := Change{earlier, later, "not significant", ratio(&earlier, &later), difference(&earlier, &later)}
	switch d := c.Difference; {
	case math.IsNaN(d.Low) || math.IsNaN(d.High):
		c.Direction = "unknown"
	case d.Low > 0:
		c.Direction = "higher"
	case d.High < 0:
		c.Direction = "lower"
	}
	return c
}

// Compare returns how later results differ from earlier ones. Results with different
// stamps are an error (ErrStamps) unless force is set.
func Compare(earlier, later *Report, force bool) (*Diff, error) {
	a, b := slices.Sorted(slices.Values(earlier.stamps())), slices.Sorted(slices.Values(later.stamps()))
	if !slices.Equal(a, b) && !force {
		return nil, fmt.Errorf("compare %s with %s: %w: %s, and %s", earlier.Study.Name, later.Study.Name, ErrStamps, stampText(a), stampText(b))
	}
	d := &Diff{Earlier: earlier, Later: later, Study: later.Study.Name, Stamps: b, Changes: []Change{}}
	name := func(v *Value) [5]string { return [5]string{v.Analysis, v.Quantity, v.Cell, v.Part, v.At} }
	others := map[[5]string]Value{}
	for _, v := range Values(&later.ordered().Results) {
		others[name(&v)] = v
	}
	for _, v := range Values(&earlier.ordered().Results) {
		w, ok := others[name(&v)]
		if !ok {
			d.OnlyEarlier = append(d.OnlyEarlier, v)
			continue
		}
		delete(others, name(&v))
		d.Changes = append(d.Changes, change(v, w))
	}
	for _, v := range Values(&later.ordered().Results) {
		if _, ok := others[name(&v)]; ok {
			d.OnlyLater = append(d.OnlyLater, v)
		}
	}
	return d, nil
}

func stampText(s []string) string {
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

func difference(a, b *Value) analyse.Interval {
	i := noBounds(float64(b.Value - a.Value))
	i.Level, i.Method, i.N = a.Level, "half-widths added in squares", a.N+b.N
	if a.Level != b.Level {
		return i
	}
	// Intervals of ratios are asymmetric: each bound has its own half-width.
	half := func(p, q stat.Float) float64 { return math.Hypot(float64(p), float64(q)) }
	i.Low = i.Value - half(b.Value-b.Low, a.High-a.Value)
	i.High = i.Value + half(b.High-b.Value, a.Value-a.Low)
	return i
}

func ratio(a, b *Value) analyse.Interval {
	i := noBounds(float64(b.Value / a.Value))
	i.Level, i.Method, i.N = a.Level, "logarithms' half-widths added in squares", a.N+b.N
	if !(a.Value > 0 && b.Value > 0) {
		i.Value = math.NaN()
		return i
	}
	if a.Level != b.Level || !(a.Low > 0 && b.Low > 0) {
		return i
	}
	half := func(p, q stat.Float) float64 { return math.Exp(math.Hypot(math.Log(float64(p)), math.Log(float64(q)))) }
	i.Low, i.High = i.Value/half(b.Value/b.Low, a.High/a.Value), i.Value*half(b.High/b.Value, a.Value/a.Low)
	return i
}

// Markdown writes the difference for people: first the conditions that differ, then the
// values that changed, then all others.
func (d *Diff) Markdown(w io.Writer) error {
	conditions := page.Table{Caption: "Conditions that differ", Head: []string{"", "earlier", "later"}}
	condition := func(name, earlier, later string) {
		if earlier != later {
			conditions.Rows = append(conditions.Rows, page.Row(name, earlier, later))
		}
	}
	condition("stamps", stampText(d.Earlier.stamps()), stampText(d.Later.stamps()))
	condition("study", d.Earlier.Study.Name, d.Later.Study.Name)
	condition("study file's hash", d.Earlier.Lock.Hash, d.Later.Lock.Hash)
	condition("quell", d.Earlier.Lock.Program, d.Later.Lock.Program)
	condition("missed requirements", strings.Join(d.Earlier.Missed, "; "), strings.Join(d.Later.Missed, "; "))
	before, after := d.Earlier.facts(), d.Later.facts()
	for _, f := range before {
		at := slices.IndexFunc(after, func(g Fact) bool { return g.Name == f.Name })
		if at < 0 {
			condition(f.Name, f.Value, unknown)
		} else {
			condition(f.Name, f.Value, after[at].Value)
		}
	}
	for _, f := range after {
		if !slices.ContainsFunc(before, func(g Fact) bool { return g.Name == f.Name }) {
			condition(f.Name, unknown, f.Value)
		}
	}
	head := []string{"value", "change", "ratio", "interval", "difference", "interval", "earlier", "later", "unit"}
	changed, rest := page.Table{Caption: "Values that changed", Head: head}, page.Table{Caption: "Values without a significant change", Head: head}
	judged := 0
	for _, c := range d.Changes {
		seen := c.Direction
		line := page.Row(c.Earlier.Name(), seen, number(c.Ratio.Value), between(c.Ratio), number(c.Difference.Value), between(c.Difference), number(float64(c.Earlier.Value)), number(float64(c.Later.Value)), c.Earlier.Unit)
		if seen != "unknown" {
			judged++
		}
		if seen == "higher" || seen == "lower" {
			changed.Rows = append(changed.Rows, line)
		} else {
			rest.Rows = append(rest.Rows, line)
		}
	}
	p := page.Page{Heading: d.Later.Study.Name + ": later results compared with earlier ones", Head: []page.Table{conditions}, Sections: []page.Section{{
		Notes:    []string{fmt.Sprintf("%s among %s with an interval. By chance about 1 in 20 of the unchanged values shows a change.", plural(len(changed.Rows), "change"), plural(judged, "value"))},
		Exhibits: []page.Exhibit{{Table: changed}, {Table: rest}}}}}
	for _, o := range []struct {
		caption string
		values  []Value
	}{{"Values only in the earlier results", d.OnlyEarlier}, {"Values only in the later results", d.OnlyLater}} {
		t := page.Table{Caption: o.caption, Head: []string{"name", "value", "unit"}}
		for _, v := range o.values {
			t.Rows = append(t.Rows, page.Row(v.Name(), number(float64(v.Value)), v.Unit))
		}
		p.Sections[0].Exhibits = append(p.Sections[0].Exhibits, page.Exhibit{Table: t})
	}
	return p.Markdown(w)
}

// facts are those of all machines, prefixed with the machine's name where there are
// several.
func (r *Report) facts() []Fact {
	var all []Fact
	for _, m := range r.Machines {
		for _, f := range m.Facts {
			if len(r.Machines) > 1 {
				f.Name = m.Name + " " + f.Name
			}
			all = append(all, f)
		}
	}
	return all
}
