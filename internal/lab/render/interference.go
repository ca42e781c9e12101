package render

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// interferences are paper 003's figures 2 and 3 and its tables I and II.
func (r *Report) interferences(options map[string]string) page.Section {
	s := page.Section{ID: "interference", Title: "Performance interference"}
	var intervals []analyse.Interval
	for _, i := range r.Results.Interferences {
		intervals = append(intervals, i.Interval)
	}
	s.Notes = append(s.Notes,
		"The metric is the percentage of its throughput that the foreground would lose between no and full background load: the mean of −100·slope/intercept of the rising and of the falling half, each fitted separately to the achieved load. "+
			"Bold: the halves' normalised slopes differ by less than 3° and all four p are under 0.05; sans-serif: only the halves differ; plain: only a p is too high; italic: both. "+method(intervals...),
		"The criteria and the metric are the paper's (Podzimek et al. 2015, IV-B); the intervals are ours.")
	tables, excluded := r.shaded(options["exclude_rows"])
	if excluded != "" {
		s.Notes = append(s.Notes, "Rows of "+excluded+" are excluded from the range of the colours.")
	}
	for _, t := range tables {
		s.Exhibits = append(s.Exhibits, page.Exhibit{Table: t})
	}
	s.Exhibits = append(s.Exhibits, first(&s, r.loadPlots()), first(&s, r.timelines()), first(&s, r.stepEvents()))
	return s
}

// factorOf is the factor that sets a role's workload or environment, "" if the file sets
// it directly.
func factorOf(field string) string {
	if name, is := strings.CutPrefix(field, "$"); is {
		return name
	}
	return ""
}

// axes are the factors of the tables' rows and columns.
func (r *Report) axes(role string) (rows, columns string) {
	role, _, _ = strings.Cut(role, "/")
	for _, o := range r.Study.Roles {
		switch {
		case o.Name == role:
			rows = factorOf(o.Workload)
		case columns == "" && o.Load.Target != "":
			columns = factorOf(o.Workload)
		}
	}
	return rows, columns
}

// kind is the kind of environment that a role has at the given levels: all tables of one
// kind share a colour scale.
func (r *Report) kind(role string, ls []study.Level) string {
	role, _, _ = strings.Cut(role, "/")
	o := r.Study.Role(role)
	if o == nil {
		return ""
	}
	name := o.Environment
	if f := factorOf(name); f != "" {
		name = study.LevelOf(ls, f)
	}
	return string(r.Study.Environments[name].Driver)
}

// shaded are the tables of the metric: foregrounds in rows, backgrounds in columns, one
// table per combination of the other levels.
func (r *Report) shaded(exclude string) (tables []page.Table, excluded string) {
	all := r.Results.Interferences
	barred := strings.FieldsFunc(exclude, func(c rune) bool { return c == ',' || c == ' ' })
	values := map[string][]float64{}
	for _, i := range all {
		rows, _ := r.axes(i.Role)
		if !slices.Contains(barred, study.LevelOf(i.Levels, rows)) {
			k := r.kind(i.Role, i.Levels)
			values[k] = append(values[k], i.Metric)
		}
	}
	named := func(i *analyse.Interference) string {
		rows, columns := r.axes(i.Role)
		return i.Role + ", " + words(i.Levels, rows, columns)
	}
	for name, g := range grouped(all, named) {
		rows, columns := r.axes(g[0].Role)
		var across, along []string
		for _, i := range g {
			if c := study.LevelOf(i.Levels, columns); !slices.Contains(across, c) {
				across = append(across, c)
			}
			if c := study.LevelOf(i.Levels, rows); !slices.Contains(along, c) {
				along = append(along, c)
			}
		}
		t := page.Table{Caption: "Interference metric (%) of " + name, Head: append([]string{"foreground \\ background"}, across...)}
		if len(across) == 1 && across[0] == "" {
			t.Head = []string{"foreground", "metric"}
		}
		scale := analyse.NewScale(values[r.kind(g[0].Role, g[0].Levels)])
		for _, a := range along {
			cells := page.Row(a)
			if a == "" {
				cells = page.Row(g[0].Role)
			}
			for _, c := range across {
				at := slices.IndexFunc(g, func(i *analyse.Interference) bool {
					return study.LevelOf(i.Levels, rows) == a && study.LevelOf(i.Levels, columns) == c
				})
				if at < 0 {
					cells = append(cells, page.Cell{Text: unknown})
					continue
				}
				i := g[at]
				text := decimals(i.Metric, 1) + " [" + decimals(i.Interval.Low, 1) + ", " + decimals(i.Interval.High, 1) + "]"
				cells = append(cells, page.Cell{Text: text, Style: i.Style(), Shade: scale.Shade(i.Metric), Shaded: true})
			}
			t.Rows = append(t.Rows, cells)
		}
		tables = append(tables, t)
	}
	return tables, strings.Join(barred, ", ")
}

// loadPlots draws throughput against the background's load, a plot per pair of workloads
// and a colour per placement (figure 3).
func (r *Report) loadPlots() page.Exhibit {
	e := page.Exhibit{Table: page.Table{Caption: "Lines of throughput against load, first run of each cell",
		Head: []string{"cell", "part", "half", "metric", "intercept, 1/s", "slope, 1/s", "p of slope", "p of intercept", "steps", "angle °", "metric of all runs"}}}
	for name, group := range grouped(r.Results.Interferences, func(i *analyse.Interference) string { return i.Role + ": " + words(i.Levels, r.placing()...) }) {
		c := plot.Chart{Title: "Throughput against load, " + name, X: "background load, share of its CPUs", Y: "throughput, 1/s", Zero: true,
			About: "Throughput of the foreground at each step of background load; triangles up are the rising half, down the falling one, lines are fitted to each half. The table below has the lines."}
		for _, i := range group {
			place, k := r.place(i.Levels), r.colour(i.Levels)
			marks := halves(place, k, i.Points)
			for h, half := range i.Halves {
				l := half.Line
				fit := plot.Series{Index: k, Line: true}
				for _, x := range []float64{0, 1} {
					fit.Add(x, l.Intercept+l.Slope*x)
				}
				c.Series = append(c.Series, fit)
				e.Table.Rows = append(e.Table.Rows, page.Row(words(i.Levels), i.Role, []string{"rising", "falling"}[h], number(half.Metric), number(l.Intercept), number(l.Slope),
					probability(l.PSlope), probability(l.PIntercept), fmt.Sprint(l.N), decimals(i.Angle, 2), estimate(i.Interval)))
			}
			c.Series = append(c.Series, marks...)
		}
		e.Plots = append(e.Plots, c.Draw())
	}
	return e
}

// halves are the marks of a staircase's rising and of its falling half.
func halves(name string, index int, points []analyse.Point) []plot.Series {
	both := []plot.Series{{Name: name + ", rising", Index: index, Mark: plot.Up}, {Name: name + ", falling", Index: index, Mark: plot.Down}}
	for _, p := range points {
		k := 1
		if p.Up {
			k = 0
		}
		both[k].Add(p.Load, p.Throughput)
	}
	return both
}

// backgrounds draws the background's throughput against its own load, next to each
// foreground: what a placement that is kind to the foreground takes from it (figure 4).
func (r *Report) backgrounds() (plots []plot.Plot) {
	for name, group := range grouped(r.Results.Interferences, func(i *analyse.Interference) string { return i.Role + ": " + words(i.Levels, r.placing()...) }) {
		c := plot.Chart{Title: "Background throughput against its load, next to " + name, X: "background load, share of its CPUs", Y: "background throughput, 1/s", Zero: true,
			About: "Throughput of the background at each step of its load, a colour per placement; triangles up are the rising half, down the falling one. The table below has the numbers of the first run of each cell."}
		any := false
		for _, i := range group {
			any = any || len(i.Background) > 0
			c.Series = append(c.Series, halves(r.place(i.Levels), r.colour(i.Levels), i.Background)...)
		}
		if any {
			plots = append(plots, c.Draw())
		}
	}
	return plots
}

// mostBins is how many points a time line has at most.
const mostBins = 400

// timelines draw the first valid run of each cell with a staircase: the requested load
// and the throughput, over time (figure 2).
func (r *Report) timelines() page.Exhibit {
	e := page.Exhibit{Plots: r.backgrounds(), Table: page.Table{Caption: "Steps of the first runs", Long: true, Head: []string{"cell", "part", "step", "from", "to", "target", "achieved", "throughput, 1/s", "background, 1/s"}}}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Verdict != result.Valid || run.Cell.Kind != study.Main || len(run.Steps) == 0 || run.N != 0 {
			continue
		}
		var own []analyse.Point // the background's
		for k := range run.Parts {
			if p := &run.Parts[k]; p.Role == run.Steps[0].Role && len(p.Iterations) > 0 {
				own = analyse.Steps(run, p, 0)
			}
		}
		for k := range run.Parts {
			p := &run.Parts[k]
			if p.Role == run.Steps[0].Role || len(p.Iterations) == 0 {
				continue
			}
			e.Plots = append(e.Plots, r.timeline(run, p))
			for n, point := range analyse.Steps(run, p, 0) {
				s, background := run.Steps[n], unknown
				if own != nil {
					background = number(own[n].Throughput)
				}
				e.Table.Rows = append(e.Table.Rows, page.Row(words(run.Cell.Levels), p.Name, fmt.Sprint(n+1), s.From.String(), s.To.String(),
					percentage(float64(s.Target)), percentage(s.Achieved), number(point.Throughput), background))
			}
		}
	}
	return e
}

// stepEvents are the events of each step in the first valid run of each cell, per second.
func (r *Report) stepEvents() page.Exhibit {
	t := page.Table{Caption: "Events in each step of those runs", Long: true, Head: []string{"cell", "part", "event", "step", "target", "events/s"}}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Verdict != result.Valid || run.Cell.Kind != study.Main || run.N != 0 {
			continue
		}
		for _, p := range run.Parts {
			for n, events := range p.StepEvents[:min(len(p.StepEvents), len(run.Steps))] {
				s := run.Steps[n]
				for _, name := range slices.Sorted(maps.Keys(events)) {
					t.Rows = append(t.Rows, page.Row(words(run.Cell.Levels), p.Name, name, fmt.Sprint(n+1), percentage(float64(s.Target)), number(events[name]/(s.To-s.Trail-s.From-s.Settle).Seconds())))
				}
			}
		}
	}
	return page.Exhibit{Table: t}
}

func (r *Report) timeline(run *result.Run, p *result.Part) plot.Plot {
	from, to := run.Steps[0].From, run.Steps[len(run.Steps)-1].To
	width := 6 * time.Second // the paper's
	for (to-from)/width > mostBins {
		width += 6 * time.Second
	}
	c := plot.Chart{Title: fmt.Sprintf("Time line, %s: %s", p.Name, words(run.Cell.Levels)), X: "time, s", Y: "load, %", Right: fmt.Sprintf("throughput, 1/s (%s)", width), Zero: true,
		About: "The background's load as a staircase, requested and achieved, and the throughput of " + p.Name + " over time; the table below has the steps."}
	target := plot.Series{Name: "requested load", Mark: plot.Stair, Line: true, Quiet: true}
	achieved := plot.Series{Name: "achieved load", Line: true, Quiet: true}
	for _, s := range run.Steps {
		for _, at := range []time.Duration{s.From, s.To} {
			target.Add(at.Seconds(), 100*float64(s.Target))
		}
		for _, at := range []time.Duration{s.From + s.Settle, s.To - s.Trail} {
			achieved.Add(at.Seconds(), 100*s.Achieved)
		}
		achieved.Add(math.NaN(), math.NaN())
	}
	work := plot.Series{Name: "throughput", Index: 0, Line: true, Right: true}
	for k, v := range analyse.Bins(p.Iterations, from, to, width) {
		work.Add((from + time.Duration(k)*width + width/2).Seconds(), v)
	}
	c.Series = []plot.Series{target, achieved, work}
	return c.Draw()
}

// systems are the total work of all parts along the staircase, and per watt-hour (figures
// 5, 6, 8 and 9 of paper 003).
func (r *Report) systems(options map[string]string) page.Section {
	s := page.Section{ID: "throughput", Title: "Throughput and energy of the whole system"}
	base := cmp.Or(options["base"], "per-chip")
	t := page.Table{Caption: "Work of all parts together, step by step", Head: []string{"cell", "unit", "step", "load", "half", "throughput", "interval", "% of " + base, "work per Wh", "interval", "% of " + base, "power, W"}}
	var intervals []analyse.Interval
	var e page.Exhibit
	energy := false
	for name, group := range grouped(r.Results.Systems, func(y *analyse.System) string { return words(y.Levels, r.placing()...) }) {
		charts := []struct {
			plot.Chart
			of func(s analyse.SystemStep) analyse.Interval
		}{
			{plot.Chart{Title: "System throughput, " + name, Y: group[0].Unit, Zero: true}, func(s analyse.SystemStep) analyse.Interval { return s.Throughput }},
			{plot.Chart{Title: "System throughput in % of " + base + ", " + name, Y: "% of " + base}, func(s analyse.SystemStep) analyse.Interval { return noBounds(s.Relative.Value) }},
			{plot.Chart{Title: "Work per watt-hour, " + name, Y: "work/Wh", Zero: true}, func(s analyse.SystemStep) analyse.Interval { return s.PerWh }},
			{plot.Chart{Title: "Work per watt-hour in % of " + base + ", " + name, Y: "% of " + base}, func(s analyse.SystemStep) analyse.Interval { return noBounds(s.RelativePerWh.Value) }},
			{plot.Chart{Title: "Mean power of each step (figure 7), " + name, Y: "W", Zero: true}, func(s analyse.SystemStep) analyse.Interval { return s.Watts }},
		}
		counted := false
		for _, y := range group {
			for n, step := range y.Steps {
				counted = counted || !math.IsNaN(step.PerWh.Value)
				intervals = append(intervals, step.Throughput)
				half := "falling"
				if step.Up {
					half = "rising"
				}
				t.Rows = append(t.Rows, page.Row(words(y.Levels), y.Unit, fmt.Sprint(n+1), percentage(step.Target), half, number(step.Throughput.Value), between(step.Throughput),
					number(step.Relative.Value), number(step.PerWh.Value), between(step.PerWh), number(step.RelativePerWh.Value), estimate(step.Watts)))
			}
			for k := range charts {
				line := plot.Series{Name: r.place(y.Levels), Index: r.colour(y.Levels), Mark: plot.Dot, Line: true}
				for n, step := range y.Steps {
					line.AddInterval(float64(n+1), bounds(charts[k].of(step)))
				}
				charts[k].Series = append(charts[k].Series, line)
			}
		}
		if energy = energy || counted; !counted {
			charts = charts[:2]
		}
		for _, c := range charts {
			c.X, c.About = "step", "Lines per placement over the steps of the staircase, load up and then down; the table below has the numbers."
			e.Plots = append(e.Plots, c.Draw())
		}
	}
	s.Notes = append(s.Notes, "The work of equal workloads is summed unchanged; in mixed pairs each part's work is first divided by its work alone at full load (unit: share of solo). Relative values are ratios of means; their intervals, over repetitions, are in the CSV. "+method(intervals...))
	if energy {
		s.Notes = append(s.Notes, "Energy is from: "+r.energy()+".")
	} else {
		s.Notes = append(s.Notes, "No energy source, so no work per watt-hour.")
	}
	e.Table = t
	s.Exhibits = append(s.Exhibits, first(&s, e))
	return s
}
