package render

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// interferences are paper 003's figures 2 and 3 and its tables I and II.
func (r *Report) interferences(options map[string]string) section {
	s := section{ID: "interference", Title: "Performance interference"}
	all := r.Results.Interferences
	if len(all) == 0 {
		return s
	}
	var intervals []analyse.Interval
	for _, i := range all {
		intervals = append(intervals, i.Interval)
	}
	s.Notes = append(s.Notes,
		"The metric is the percentage of its throughput that the foreground would lose between no and full background load: the mean of −100·slope/intercept of the rising and of the falling half, each fitted alone, on the load that was achieved. "+
			"Bold: the halves' normalised slopes differ by less than 3° and all four p are under 0.05; sans-serif: only the halves differ; plain: only a p is too high; italic: both. "+method(intervals...),
		"The criteria and the metric are the paper's (Podzimek et al. 2015, IV-B); the intervals are ours.")
	tables, excluded := r.shaded(options["exclude_rows"])
	if excluded != "" {
		s.Notes = append(s.Notes, "Rows of "+excluded+" take no part in the range of the colours.")
	}
	for _, t := range tables {
		s.Exhibits = append(s.Exhibits, exhibit{Table: t})
	}
	s.Exhibits = append(s.Exhibits, s.first(r.against()), s.first(r.timelines()))
	return s
}

// factorOf is the factor that gives a role its workload or environment, "" if
// the file does.
func factorOf(field string) string {
	name, is := strings.CutPrefix(field, "$")
	if !is {
		return ""
	}
	return name
}

// axes are the factors of the tables' rows, columns and colour scales.
func (r *Report) axes(role string) (rows, columns, environment string) {
	role, _, _ = strings.Cut(role, "/")
	for i := range r.Study.Roles {
		o := &r.Study.Roles[i]
		switch {
		case o.Name == role:
			rows, environment = factorOf(o.Workload), factorOf(o.Environment)
		case columns == "" && o.Load.Target != "":
			columns = factorOf(o.Workload)
		}
	}
	return rows, columns, environment
}

// kind is the kind of the environment that a role has at some levels: one scale
// of colours is for all tables of one kind.
func (r *Report) kind(role string, ls []study.Level) string {
	role, _, _ = strings.Cut(role, "/")
	o := r.Study.Role(role)
	if o == nil {
		return ""
	}
	name := o.Environment
	if f := factorOf(name); f != "" {
		name = level(ls, f)
	}
	return string(r.Study.Environments[name].Driver)
}

// shaded are the tables of the metric: foregrounds in rows, backgrounds in
// columns, one table per other level.
func (r *Report) shaded(exclude string) (tables []table, excluded string) {
	all := r.Results.Interferences
	barred := strings.FieldsFunc(exclude, func(c rune) bool { return c == ',' || c == ' ' })
	values := map[string][]float64{}
	for _, i := range all {
		rows, _, _ := r.axes(i.Role)
		if !slices.Contains(barred, level(i.Levels, rows)) {
			k := r.kind(i.Role, i.Levels)
			values[k] = append(values[k], i.Metric)
		}
	}
	names, groups := grouped(all, func(i *analyse.Interference) string {
		rows, columns, _ := r.axes(i.Role)
		return i.Role + ", " + words(i.Levels, rows, columns)
	})
	for _, name := range names {
		g := groups[name]
		rows, columns, _ := r.axes(g[0].Role)
		var across, along []string
		for _, i := range g {
			if c := level(i.Levels, columns); !slices.Contains(across, c) {
				across = append(across, c)
			}
			if c := level(i.Levels, rows); !slices.Contains(along, c) {
				along = append(along, c)
			}
		}
		t := table{Caption: "Interference metric (%) of " + name, Head: append([]string{"foreground \\ background"}, across...)}
		if len(across) == 1 && across[0] == "" {
			t.Head = []string{"foreground", "metric"}
		}
		scale := analyse.NewScale(values[r.kind(g[0].Role, g[0].Levels)])
		for _, a := range along {
			cells := row(a)
			if a == "" {
				cells = row(g[0].Role)
			}
			for _, c := range across {
				at := slices.IndexFunc(g, func(i *analyse.Interference) bool {
					return level(i.Levels, rows) == a && level(i.Levels, columns) == c
				})
				if at < 0 {
					cells = append(cells, cell{Text: unknown})
					continue
				}
				i := g[at]
				text := decimals(i.Metric, 1) + " [" + decimals(i.Interval.Low, 1) + ", " + decimals(i.Interval.High, 1) + "]"
				cells = append(cells, cell{Text: text, Style: i.Style(), Shade: scale.Shade(i.Metric), Shaded: true})
			}
			t.Rows = append(t.Rows, cells)
		}
		tables = append(tables, t)
	}
	return tables, strings.Join(barred, ", ")
}

// against draws throughput against the background's load, a plot per pair of
// workloads and a colour per placement (figure 3).
func (r *Report) against() exhibit {
	e := exhibit{Table: table{Caption: "Lines of throughput against load, first run of each cell",
		Head: []string{"cell", "part", "half", "metric", "intercept, 1/s", "slope, 1/s", "p of slope", "p of intercept", "steps", "angle °", "metric of all runs"}}}
	names, groups := grouped(r.Results.Interferences, func(i *analyse.Interference) string { return i.Role + ": " + words(i.Levels, r.placing()...) })
	for _, name := range names {
		c := chart{title: "Throughput against load, " + name, x: "background load, share of its CPUs", y: "throughput, 1/s", zero: true,
			about: "Throughput of the foreground at each step of background load; triangles up are the rising half, down the falling one, lines are fitted to each half. The table below has the lines."}
		for _, i := range groups[name] {
			place, k := r.place(i.Levels), r.colour(i.Levels)
			rising, falling := series{name: place + ", rising", index: k, mark: up}, series{name: place + ", falling", index: k, mark: down}
			for _, p := range i.Points {
				if p.Up {
					rising.add(p.Load, p.Throughput)
				} else {
					falling.add(p.Load, p.Throughput)
				}
			}
			for h, half := range i.Halves {
				l := half.Line
				fit := series{index: k, line: true}
				for _, x := range []float64{0, 1} {
					fit.add(x, l.Intercept+l.Slope*x)
				}
				c.series = append(c.series, fit)
				e.Table.Rows = append(e.Table.Rows, row(words(i.Levels), i.Role, []string{"rising", "falling"}[h], number(half.Metric), number(l.Intercept), number(l.Slope),
					probability(l.PSlope), probability(l.PIntercept), fmt.Sprint(l.N), decimals(i.Angle, 2), estimate(i.Interval)))
			}
			c.series = append(c.series, rising, falling)
		}
		e.Plots = append(e.Plots, c.draw())
	}
	return e
}

// mostBins is how many points a time line has at most.
const mostBins = 400

// timelines draw the first valid run of each cell with a staircase: the load
// that was asked for and the throughput, over time (figure 2).
func (r *Report) timelines() exhibit {
	e := exhibit{Table: table{Caption: "Steps of those runs", Long: true, Head: []string{"cell", "part", "step", "from", "to", "target", "achieved", "throughput, 1/s"}}}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Verdict != result.Valid || run.Cell.Kind != study.Main || len(run.Steps) == 0 || run.N != 0 {
			continue
		}
		for k := range run.Parts {
			p := &run.Parts[k]
			if p.Role == run.Steps[0].Role || len(p.Iterations) == 0 {
				continue
			}
			e.Plots = append(e.Plots, r.timeline(run, p))
			for n, point := range analyse.Steps(run, p, 0) {
				s := run.Steps[n]
				e.Table.Rows = append(e.Table.Rows, row(words(run.Cell.Levels), p.Name, fmt.Sprint(n+1), s.From.String(), s.To.String(),
					percentage(float64(s.Target)), percentage(s.Achieved), number(point.Throughput)))
			}
		}
	}
	return e
}

func (r *Report) timeline(run *result.Run, p *result.Part) plot {
	from, to := run.Steps[0].From, run.Steps[len(run.Steps)-1].To
	width := 6 * time.Second // the paper's
	for (to-from)/width > mostBins {
		width += 6 * time.Second
	}
	c := chart{title: fmt.Sprintf("Time line, %s: %s", p.Name, words(run.Cell.Levels)), x: "time, s", y: "load, %", right: fmt.Sprintf("throughput, 1/s (%s)", width), zero: true,
		about: "The background's load as a staircase, asked for and achieved, and the throughput of " + p.Name + " over time; the table below has the steps."}
	target := series{name: "load asked for", mark: stair, line: true, quiet: true}
	achieved := series{name: "load achieved", line: true, quiet: true}
	for _, s := range run.Steps {
		for _, at := range []time.Duration{s.From, s.To} {
			target.add(at.Seconds(), 100*float64(s.Target))
		}
		for _, at := range []time.Duration{s.From + s.Settle, s.To - s.Trail} {
			achieved.add(at.Seconds(), 100*s.Achieved)
		}
		achieved.add(math.NaN(), math.NaN())
	}
	work := series{name: "throughput", index: 0, line: true, right: true}
	for k, v := range analyse.Bins(p.Iterations, from, to, width) {
		work.add((from + time.Duration(k)*width + width/2).Seconds(), v)
	}
	c.series = []series{target, achieved, work}
	return c.draw()
}

// systems are the work of all parts together along the staircase, and per
// watt-hour (figures 5, 6, 8 and 9 of paper 003).
func (r *Report) systems(options map[string]string) section {
	s := section{ID: "throughput", Title: "Throughput and energy of the whole system"}
	all := r.Results.Systems
	if len(all) == 0 {
		return s
	}
	base := options["base"]
	if base == "" {
		base = "per-chip"
	}
	t := table{Caption: "Work of all parts together, step by step", Head: []string{"cell", "unit", "step", "load", "half", "throughput", "interval", "% of " + base, "work per Wh", "interval", "% of " + base}}
	names, groups := grouped(all, func(y *analyse.System) string { return words(y.Levels, r.placing()...) })
	var intervals []analyse.Interval
	var e exhibit
	energy := false
	for _, name := range names {
		unit := groups[name][0].Unit
		absolute := chart{title: "System throughput, " + name, x: "step", y: unit, zero: true}
		relative := chart{title: "System throughput in % of " + base + ", " + name, x: "step", y: "% of " + base}
		perWh := chart{title: "Work per watt-hour, " + name, x: "step", y: "work/Wh", zero: true}
		relativeWh := chart{title: "Work per watt-hour in % of " + base + ", " + name, x: "step", y: "% of " + base}
		counted := false
		for _, y := range groups[name] {
			place, k := r.place(y.Levels), r.colour(y.Levels)
			line := func() series { return series{name: place, index: k, mark: dot, line: true} }
			a, b, c, d := line(), line(), line(), line()
			for n, step := range y.Steps {
				x := float64(n + 1)
				a.addInterval(x, step.Throughput)
				b.add(x, step.Relative.Value)
				c.addInterval(x, step.PerWh)
				d.add(x, step.RelativePerWh.Value)
				counted = counted || !math.IsNaN(step.PerWh.Value)
				intervals = append(intervals, step.Throughput)
				half := "falling"
				if step.Up {
					half = "rising"
				}
				t.Rows = append(t.Rows, row(words(y.Levels), y.Unit, fmt.Sprint(n+1), percentage(step.Target), half, number(step.Throughput.Value), between(step.Throughput),
					number(step.Relative.Value), number(step.PerWh.Value), between(step.PerWh), number(step.RelativePerWh.Value)))
			}
			absolute.series, relative.series = append(absolute.series, a), append(relative.series, b)
			perWh.series, relativeWh.series = append(perWh.series, c), append(relativeWh.series, d)
		}
		charts := []chart{absolute, relative}
		if counted {
			charts, energy = append(charts, perWh, relativeWh), true
		}
		for _, c := range charts {
			c.about = "Lines per placement over the steps of the staircase, load up and then down; the table below has the numbers."
			e.Plots = append(e.Plots, c.draw())
		}
	}
	s.Notes = append(s.Notes, "Equal workloads' work is summed as it is; of mixed pairs each part's work is first divided by what it does alone (unit: share of solo). Relative values are of the means; their intervals, over repetitions, are in the tables of numbers (CSV). "+method(intervals...))
	if energy {
		s.Notes = append(s.Notes, "Energy is from: "+r.energy()+".")
	} else {
		s.Notes = append(s.Notes, "No energy source, so no work per watt-hour.")
	}
	e.Table = t
	s.Exhibits = append(s.Exhibits, s.first(e))
	return s
}
