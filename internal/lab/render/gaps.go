package render

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
)

// coreColumns are the CPUs, the cores and the CPUs per core of a dose, for its table.
func coreColumns(c *analyse.Cores) (cpus, cores, each string) {
	if c == nil {
		return "", "", ""
	}
	if c.CPUs > 0 {
		cpus = fmt.Sprint(c.CPUs)
	}
	switch {
	case c.Least == c.Most:
		cores = fmt.Sprint(c.Least)
	case c.Most == 0:
		cores = fmt.Sprintf("%d or more", c.Least)
	default:
		cores = fmt.Sprintf("%d to %d", c.Least, c.Most)
	}
	if p := c.PerCore(); p > 0 {
		each = number(p)
	}
	return cpus, cores, each
}

// gaps compare environments with the base at both ends of a dose: the gap of the first
// virtual machine, and whether both meet on a full host.
func (r *Report) gaps() page.Exhibit {
	t := page.Table{Caption: "Increase in time per unit of work, over its own lowest dose and over the base environment, %",
		Head: []string{"cell", "part", "of", "over", "threads at lowest dose", "lowest dose over base at equal threads", "threads at highest dose", "highest dose over own lowest", "highest dose over base at the lowest dose's threads", "highest dose over base at equal threads", "equal at highest dose?"}}
	for _, g := range r.Results.DoseGaps {
		t.Rows = append(t.Rows, page.Row(words(g.Levels), g.Part, g.Of, g.Over, fmt.Sprint(g.Lone), estimate(g.First), fmt.Sprint(g.Full), estimate(g.OverOwnLowest), estimate(g.OverBaseLowest), estimate(g.AtFull), string(g.Meeting)))
	}
	return page.Exhibit{Table: t}
}

// costs show the cost of work in each environment: the price of a CPU, and the work that
// a price buys.
func (r *Report) costs() page.Exhibit {
	t := page.Table{Caption: "Cost of work; for a machine that is rented whole only the highest dose is valid",
		Head: []string{"cell", "part", "price per CPU-hour", "CPUs", "work per unit of currency, lowest dose", "highest dose", "unit", "over the base at highest dose, %"}}
	b := plot.Bars{Title: "Work per price", Series: []string{"lowest dose", "highest dose"}, About: "Two bars per cell: work per price at the lowest and highest dose, with intervals; the table below has the numbers."}
	most := 0.0
	for _, c := range r.Results.DoseCosts {
		most = max(most, c.Lone.Value, c.Full.Value)
	}
	// The numbers are large: scale them by a power of thousand to keep them readable.
	thousands, power := 1.0, ""
	if e := 3 * math.Floor(math.Log10(most)/3); e >= 6 {
		thousands, power = math.Pow(10, -e), fmt.Sprintf("10^%.0f ", e)
	}
	for _, c := range r.Results.DoseCosts {
		lone, full, unit := times(thousands, c.Lone), times(thousands, c.Full), power+c.Unit
		t.Rows = append(t.Rows, page.Row(words(c.Levels), c.Part, c.Price.String(), fmt.Sprint(c.CPUs), estimate(lone), estimate(full), unit, estimate(c.OverBase)))
		b.Unit = unit
		b.Groups = append(b.Groups, plot.Group{Name: words(c.Levels), Values: []plot.Interval{bounds(lone), bounds(full)}})
	}
	e := page.Exhibit{Table: t}
	// Bars with different units cannot share one axis.
	if !slices.ContainsFunc(r.Results.DoseCosts, func(c analyse.DoseCost) bool { return power+c.Unit != b.Unit }) {
		e.Plots = split(b)
	}
	return e
}

// variations show how much instances of one size differ (paper 002, 5.2.1).
func (r *Report) variations(options map[string]string) page.Section {
	s := page.Section{ID: "variation", Title: "Variation between instances of one size"}
	sums := page.Table{Caption: "How much instances differ", Head: []string{"cell", "part", "instances", "mean", "unit", "between instances, %", "between runs of one instance, %", "p of equal instances", "slowest over fastest, %"}}
	each := page.Table{Caption: "Each instance, the fastest first", Head: []string{"cell", "part", "instance", "value", "interval", "runs", "unit", "slower than the median, %"}}
	var plots []plot.Plot
	var intervals []analyse.Interval
	for _, v := range r.Results.Variations {
		intervals = append(intervals, v.Between)
		sums.Rows = append(sums.Rows, page.Row(words(v.Levels), v.Part, fmt.Sprint(len(v.Instances)), estimate(v.Mean), v.Unit, estimate(v.Between), number(float64(v.Within)), probability(float64(v.P)), number(float64(v.Span))))
		c := plot.Chart{Title: words(v.Levels) + ", " + v.Part, X: "instances, the fastest first", Y: v.Unit, About: "Value of each instance with its interval, the fastest first; the table below has the numbers."}
		one := plot.Series{Mark: plot.Dot}
		for k, i := range v.Instances {
			one.AddInterval(float64(k+1), bounds(i.Value))
			each.Rows = append(each.Rows, page.Row(words(v.Levels), v.Part, i.Name, number(i.Value.Value), between(i.Value), fmt.Sprint(i.Value.N), v.Unit, number(i.Slower)))
		}
		c.Series = []plot.Series{one}
		plots = append(plots, c.Draw())
	}
	s.Notes = append(s.Notes, "Instances are the levels of "+cmp.Or(options["factor"], "instance")+". The difference between instances is a standard deviation, without the variation between runs of one instance. The slowest and the fastest are selected by their measured values, so noise alone makes some difference. "+method(intervals...))
	s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Plots: plots, Table: sums}), first(&s, page.Exhibit{Table: each}))
	return s
}
