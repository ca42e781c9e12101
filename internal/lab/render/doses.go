package render

import (
	"fmt"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
)

// doses show how much longer a part takes as neighbours or threads are added (figures 5.2
// to 5.11 of paper 002): against their number, one line per state of the neighbours, and
// against the busy threads of the whole run, one line per cell.
func (r *Report) doses(map[string]string) page.Section {
	s := page.Section{ID: "dose-response", Title: "Cost of each neighbour"}
	points := page.Table{Caption: "By number of neighbours", Head: []string{"cell", "part", "neighbours' state", "neighbours", "busy threads", "value", "interval", "unit", "longer %", "interval", "step %", "interval"}}
	sums := page.Table{Caption: "From the lowest dose to the highest", Head: []string{"cell", "part", "neighbours' state", "longer at highest dose %", "interval", "first half %", "second half %", "knee", "step at knee %", "CPUs", "cores", "CPUs per core", "per neighbour, % of none", "interval"}}
	var intervals []analyse.Interval
	for _, d := range r.Results.Doses {
		for i, p := range d.Points {
			cells := page.Row(words(d.Levels), d.Part, d.State, fmt.Sprint(p.Neighbours), fmt.Sprint(p.Threads), number(p.Value.Value), between(p.Value), d.Unit)
			if i > 0 {
				cells = append(cells, page.Row(number(p.Longer.Value), between(p.Longer), number(p.Step.Value), between(p.Step))...)
				intervals = append(intervals, p.Longer)
			} else {
				cells = append(cells, page.Row("", "", "", "")...)
			}
			points.Rows = append(points.Rows, cells)
		}
		knee, step := "none", ""
		if k := d.Knee; k != nil {
			knee, step = fmt.Sprintf("from %d to %d threads", k.Before, k.After), estimate(k.Step)
		}
		cpus, cores, each := coreColumns(d.Cores)
		intervals = append(intervals, d.PerNeighbour)
		sums.Rows = append(sums.Rows, page.Row(words(d.Levels), d.Part, d.State, number(d.Full.Value), between(d.Full), estimate(d.First), estimate(d.Second), knee, step, cpus, cores, each, number(d.PerNeighbour.Value), between(d.PerNeighbour)))
	}
	s.Notes = append(s.Notes,
		"Longer is the increase in time per unit of work over the lowest dose, step is that over the previous dose; rates are converted to times. "+
			"The halves are of the largest number of busy threads: up to half of it, and from the first point beyond. The knee is the largest step whose interval is above 0: "+
			"with two CPUs per core it is expected at one thread more than half of the CPUs. The number of cores follows from the largest step of 2 % or more, up to as many threads as CPUs. It is not computed for "+
			"several guests, because the hypervisor places their threads. The slope is in percent of the value at the lowest dose. "+method(intervals...))
	s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Plots: append(r.byNeighbours(), r.byThreads()...), Table: sums}), first(&s, page.Exhibit{Table: points}))
	contrasts := page.Table{Caption: "Compared at equal numbers", Head: []string{"cell", "part", "of", "over", "at equal", "number", "longer %", "interval"}}
	for _, c := range r.Results.DoseContrasts {
		for _, p := range c.Points {
			contrasts.Rows = append(contrasts.Rows, page.Row(words(c.Levels), c.Part, c.Of, c.Over, c.By, fmt.Sprint(p.At), number(p.Longer.Value), between(p.Longer)))
		}
	}
	s.Exhibits = append(s.Exhibits, r.gaps(), r.costs(), first(&s, page.Exhibit{Table: contrasts}))
	return s
}

// byNeighbours draws a part's values against the number of its neighbours.
func (r *Report) byNeighbours() []plot.Plot {
	var plots []plot.Plot
	for name, group := range grouped(r.Results.Doses, func(d *analyse.Dose) string { return words(d.Levels) + ", " + d.Part }) {
		c := plot.Chart{Title: name, X: "neighbours", Y: group[0].Unit, Zero: true, About: "Value against the number of neighbours, with intervals; the table below has the numbers."}
		for k, d := range group {
			one := plot.Series{Name: d.State, Index: k, Mark: plot.Dot, Line: true}
			for _, p := range d.Points {
				one.AddInterval(float64(p.Neighbours), bounds(p.Value))
			}
			c.Series = append(c.Series, one)
		}
		plots = append(plots, c.Draw())
	}
	return plots
}

// byThreads draws a part's values in all its cells against the busy threads of the run,
// as figure 5.6 of paper 002 does for virtual machines and metal.
func (r *Report) byThreads() []plot.Plot {
	var plots []plot.Plot
	for name, group := range grouped(r.Results.Doses, func(d *analyse.Dose) string { return d.Part }) {
		c := plot.Chart{Title: name + ", by busy threads", X: "busy threads", Y: group[0].Unit, Zero: true, About: "Value against the number of busy threads, with intervals; the table below has the numbers."}
		for _, d := range group {
			if d.State == "idle" || d.Points[0].Threads == d.Points[len(d.Points)-1].Threads {
				continue
			}
			one := plot.Series{Name: words(d.Levels), Index: len(c.Series), Mark: plot.Dot, Line: true}
			for _, p := range d.Points {
				one.AddInterval(float64(p.Threads), bounds(p.Value))
			}
			c.Series = append(c.Series, one)
		}
		if len(c.Series) > 1 { // otherwise it repeats the other plot
			plots = append(plots, c.Draw())
		}
	}
	return plots
}
