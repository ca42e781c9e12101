package render

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

// mostBars is the largest number of bars in a plot, mostPlots the largest number of plots
// of one kind in a report. The tables have the rest.
const (
	mostBars  = 48
	mostPlots = 120
)

// noBounds is a value without an interval.
func noBounds(v float64) analyse.Interval {
	return analyse.Interval{Value: v, Low: math.NaN(), High: math.NaN()}
}

// bounds converts an analysis' interval for plotting.
func bounds(i analyse.Interval) plot.Interval {
	return plot.Interval{Value: i.Value, Low: i.Low, High: i.High}
}

// degradations are bars per set of workloads, one per part and mapping (figure 3 of paper
// 000).
func (r *Report) degradations(map[string]string) page.Section {
	s := page.Section{ID: "degradation", Title: "Degradation compared with running alone"}
	t := page.Table{Caption: "Degradation of each part with others", Head: []string{"cell", "part", "workload", "others", "degradation %", "interval", "slowdown", "interval", "alone", "with others", "unit", "CPU time %"}}
	all := r.Results.Degradations
	var intervals []analyse.Interval
	better := map[string]bool{}
	for _, d := range all {
		better[d.Better] = true
		intervals = append(intervals, d.Percent)
		t.Rows = append(t.Rows, page.Row(words(d.Levels), d.Part, d.Workload, strings.Join(d.Partners, ", "), number(d.Percent.Value), between(d.Percent),
			number(d.Slowdown.Value), between(d.Slowdown), estimate(d.Solo), estimate(d.Co), d.Unit, estimate(d.CPU)))
	}
	if better["lower"] {
		s.Notes = append(s.Notes, "For times the degradation is 100·(with others/alone − 1): twice the time is 100 %.")
	}
	if better["higher"] || better[""] {
		s.Notes = append(s.Notes, "For rates the degradation is 100·(1 − with others/alone): half the rate is 50 %.")
	}
	s.Notes = append(s.Notes, "CPU time is the change of user and system time per unit of work: degradation without more CPU time means that the part waited. "+method(intervals...))
	e := page.Exhibit{Table: t}
	for name, group := range grouped(all, func(d *analyse.Degradation) string { return words(d.Levels, r.placing()...) }) {
		b := plot.Bars{Title: "Degradation, " + name, Unit: "degradation, %", About: "Bars per part and placement, compared with running alone, with intervals; the table below has the numbers."}
		at := map[string]int{}
		for _, d := range group {
			if p := r.place(d.Levels); !slices.Contains(b.Series, p) {
				b.Series = append(b.Series, p)
			}
		}
		for _, d := range group {
			label := d.Part
			if d.Workload != d.Part {
				label += " " + d.Workload
			}
			k, ok := at[label]
			if !ok {
				k = len(b.Groups)
				at[label] = k
				b.Groups = append(b.Groups, plot.Group{Name: label, Values: slices.Repeat([]plot.Interval{bounds(noBounds(math.NaN()))}, len(b.Series))})
			}
			b.Groups[k].Values[slices.Index(b.Series, r.place(d.Levels))] = bounds(d.Percent)
		}
		e.Plots = append(e.Plots, split(b)...)
	}
	s.Exhibits = append(s.Exhibits, first(&s, e))
	return s
}

// split draws bars in as many plots as needed.
func split(b plot.Bars) []plot.Plot {
	per := max(1, mostBars/max(1, len(b.Series)))
	var plots []plot.Plot
	title := b.Title
	for k, chunk := range slices.Collect(slices.Chunk(b.Groups, per)) {
		b.Groups = chunk
		if k > 0 {
			b.Title = fmt.Sprintf("%s (%d)", title, k+1)
		}
		plots = append(plots, b.Draw())
	}
	return plots
}

// first keeps the first mostPlots plots and notes how many there are.
func first(s *page.Section, e page.Exhibit) page.Exhibit {
	if n := len(e.Plots); n > mostPlots {
		e.Plots = e.Plots[:mostPlots]
		s.Notes = append(s.Notes, fmt.Sprintf("The first %d of %d plots are drawn; the table has every number.", mostPlots, n))
	}
	e.Table.Long = e.Table.Long || len(e.Table.Rows) > 20
	return e
}

// mappings are figure 4 of paper 000: average and worst degradation relative to each
// machine's best mapping, per set of workloads.
func (r *Report) mappings(map[string]string) page.Section {
	s := page.Section{ID: "mapping", Title: "Mappings of machines to cores"}
	s.Notes = append(s.Notes,
		"Each machine's time is compared with its own best mapping in the same set of workloads; the average is the arithmetic mean over all machines and mappings, including the 0 % of each best one. "+
			"The level "+study.Unpinned+", where the kernel's scheduler decides, is not in any average. These are the paper's definitions, for means over runs; the intervals are ours, over repetitions, with each machine's best mapping as found. The interval of the worst accounts for the selection of worst and best by measured values.")
	b := plot.Bars{Title: "Worst and average degradation over the best mapping", Unit: "degradation, %", Series: []string{"average", "worst"},
		About: "Two bars per set of workloads; the table below has the numbers."}
	sets := page.Table{Caption: "Sets of workloads", Head: []string{"set", "mappings", "average %", "worst %", "worst machine"}}
	mappings := map[string]bool{}
	for _, m := range r.Results.Mappings {
		b.Groups = append(b.Groups, plot.Group{Name: m.Set, Values: []plot.Interval{bounds(m.Interval), bounds(m.WorstInterval)}})
		sets.Rows = append(sets.Rows, page.Row(m.Set, fmt.Sprint(m.Mappings), estimate(m.Interval), estimate(m.WorstInterval), m.WorstOf))
		for _, p := range m.Parts {
			for name := range p.Percent {
				mappings[name] = true
			}
		}
	}
	columns := slices.Sorted(maps.Keys(mappings))
	parts := page.Table{Caption: "Each machine in each mapping, % over its best", Head: append([]string{"set", "machine", "workload"}, append(slices.Clone(columns), "average", "worst")...)}
	for _, m := range r.Results.Mappings {
		for _, p := range m.Parts {
			cells := page.Row(m.Set, p.Part, p.Workload)
			for _, name := range columns {
				text := unknown
				if v, ok := p.Intervals[name]; ok {
					text = estimate(v)
				} else if v, ok := p.Percent[name]; ok {
					text = number(v)
				}
				cells = append(cells, page.Cell{Text: text})
			}
			parts.Rows = append(parts.Rows, append(cells, page.Row(number(p.Average), number(p.Worst))...))
		}
	}
	s.Exhibits = append(s.Exhibits, page.Exhibit{Plots: split(b), Table: sets}, first(&s, page.Exhibit{Table: parts}))
	if h := r.Results.Headline; h != nil {
		t := page.Table{Caption: fmt.Sprintf("Over %d sets of workloads, %%", h.Sets), Head: []string{"", "least", "largest", "arithmetic mean", "geometric mean"}}
		for _, one := range []struct {
			name string
			of   *analyse.SetStatistics
		}{{"average degradation", &h.Average}, {"worst degradation", &h.Worst}} {
			t.Rows = append(t.Rows, page.Row(one.name, estimate(one.of.Least), estimate(one.of.Largest), estimate(one.of.Mean), estimate(one.of.Geometric)))
		}
		if len(h.Left) > 0 {
			s.Notes = append(s.Notes, "Not among those sets, as in the paper: "+strings.Join(h.Left, ", ")+".")
		}
		s.Notes = append(s.Notes, "Intervals of the least and the largest are those of that set; intervals of means are over sets.")
		s.Exhibits = append(s.Exhibits, page.Exhibit{Table: t})
	}
	advice := page.Table{Caption: "Mapping advised by cache misses measured alone; averages over machines, % over each machine's best mapping",
		Head: []string{"set", "by", "advised", "%", "best", "%", "worst", "%", study.Unpinned + " %"}}
	for _, m := range r.Results.Mappings {
		if a := m.Advised; a != nil {
			advice.Rows = append(advice.Rows, page.Row(m.Set, a.By, a.Mapping, number(a.Percent), a.BestMapping, number(a.Best), a.WorstMapping, number(a.Worst), number(float64(a.Default))))
		}
	}
	if len(advice.Rows) > 0 {
		s.Notes = append(s.Notes, "The advised mapping separates the machines with the most cache misses when alone; runs with others are not used for the choice.")
		s.Exhibits = append(s.Exhibits, page.Exhibit{Table: advice})
	}
	return s
}

// scores are the scores of each part in each cell.
func (r *Report) scores(map[string]string) page.Section {
	s := page.Section{ID: "score", Title: "Score of each part"}
	t := page.Table{Caption: "Mean over runs", Head: []string{"cell", "part", "workload", "value", "interval", "unit", "better"}}
	var intervals []analyse.Interval
	for _, v := range r.Results.Scores {
		t.Rows = append(t.Rows, page.Row(words(v.Levels), v.Part, v.Workload, number(v.Value.Value), between(v.Value), v.Unit, v.Better))
		intervals = append(intervals, v.Value)
	}
	s.Notes = append(s.Notes, method(intervals...))
	s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Table: t}))
	return s
}
