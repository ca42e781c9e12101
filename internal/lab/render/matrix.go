package render

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// correlations are table 6 of paper 000, with the statistics that a small sample needs,
// once for each setting of the knobs that the study varies.
func (r *Report) correlations(map[string]string) page.Section {
	s := page.Section{ID: "correlation", Title: "Events and degradation"}
	s.Notes = append(s.Notes,
		"The first matrix is the paper's: the correlation over each machine's own runs, alone and with others, averaged over machines. Pooled and rank correlation are over all machines' points, each divided by its value alone.",
		"p is by permutation, q is adjusted for the false discovery rate over all pairs. Intervals of averaged correlations are t over machines.")
	missing, counted := map[string]string{}, map[string]bool{}
	for _, c := range r.Results.Correlations {
		for _, name := range c.Names {
			counted[name] = true
		}
		of := ""
		if len(c.Levels) > 0 {
			of = ", " + words(c.Levels)
		}
		note := fmt.Sprintf("n = %d pooled points%s", c.N, of)
		if c.Method != "" {
			note += "; intervals of pooled and rank: " + c.Method
		}
		s.Notes = append(s.Notes, note+".")
		maps.Copy(missing, c.Missing)
		s.Exhibits = append(s.Exhibits, matrices(&c, of)...)
		s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Table: pairTable(&c, of)}))
	}
	for _, event := range slices.Sorted(maps.Keys(missing)) {
		where := ""
		if counted[event] {
			where = " in some runs"
		}
		s.Notes = append(s.Notes, event+" was not counted"+where+": "+missing[event]+".")
	}
	return s
}

// matrices are the correlations of all pairs of events, with shades.
func matrices(c *analyse.Correlations, of string) []page.Exhibit {
	var all []page.Exhibit
	for _, m := range []struct {
		title  string
		values analyse.Matrix
	}{{"Correlation, averaged over machines (the paper's)", c.PerVM}, {"Correlation, pooled", c.Pooled}, {"Rank correlation, pooled", c.Spearman}} {
		t := page.Table{Caption: m.title + of, Head: append([]string{""}, c.Names...)}
		for i, name := range c.Names {
			cells := page.Row(name)
			for j := range c.Names {
				switch v := m.values.At(i, j); {
				case i == j:
					cells = append(cells, page.Cell{Text: "1"})
				case math.IsNaN(v):
					cells = append(cells, page.Cell{Text: unknown})
				default:
					cells = append(cells, page.Cell{Text: decimals(v, 2), Shade: v, Shaded: true})
				}
			}
			t.Rows = append(t.Rows, cells)
		}
		all = append(all, page.Exhibit{Table: t})
	}
	return all
}

// pairTable are all pairs of events with their intervals, for each event in order of
// strength.
func pairTable(c *analyse.Correlations, of string) page.Table {
	type pair struct{ i, j int }
	var all []pair
	for i := range c.Names {
		for j := i + 1; j < len(c.Names); j++ {
			all = append(all, pair{i, j})
		}
	}
	slices.SortStableFunc(all, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.i, b.i), cmp.Compare(math.Abs(c.Pooled.At(b.i, b.j)), math.Abs(c.Pooled.At(a.i, a.j))))
	})
	t := page.Table{Caption: "Pairs, strongest first" + of,
		Head: []string{"event", "other event", "averaged r", "interval", "machines", "pooled r", "interval", "rank r", "interval", "p", "q"}}
	for _, p := range all {
		i, j := p.i, p.j
		in := func(low, high analyse.Matrix) string {
			if low == nil || !plot.Finite(low.At(i, j), high.At(i, j)) {
				return ""
			}
			return decimals(low.At(i, j), 2) + " to " + decimals(high.At(i, j), 2)
		}
		t.Rows = append(t.Rows, page.Row(c.Names[i], c.Names[j], decimals(c.PerVM.At(i, j), 2), in(c.PerVMLow, c.PerVMHigh), fmt.Sprint(c.VMs[i][j]),
			decimals(c.Pooled.At(i, j), 2), in(c.PooledLow, c.PooledHigh), decimals(c.Spearman.At(i, j), 2), in(c.SpearmanLow, c.SpearmanHigh),
			probability(c.P.At(i, j)), probability(c.Q.At(i, j))))
	}
	return t
}

// migrations are section 4 of paper 000: how often each part changed its CPU and its
// core, and where its threads ran.
func (r *Report) migrations(map[string]string) page.Section {
	s := page.Section{ID: "migration", Title: "Migrations"}
	t := page.Table{Caption: "Migrations", Head: []string{"cell", "part", "logical", "physical", "window, s", "logical per second", "interval", "physical per second", "on its CPUs", "two on a core while another idled", "method", "records lost"}}
	var intervals []analyse.Interval
	var e page.Exhibit
	for name, group := range grouped(r.Results.Migrations, func(m *analyse.MigrationStats) string { return words(m.Levels) }) {
		b := plot.Bars{Title: "Migrations per second, " + name, Unit: "migrations per second", Series: []string{"across logical CPUs", "across physical cores"},
			About: "Two bars per part; the table below has the numbers."}
		for _, m := range group {
			b.Groups = append(b.Groups, plot.Group{Name: m.Part, Values: []plot.Interval{bounds(m.PerSecond), bounds(m.PhysicalPerSecond)}})
			intervals = append(intervals, m.PerSecond)
			t.Rows = append(t.Rows, page.Row(name, m.Part, fmt.Sprint(m.Logical), fmt.Sprint(m.Physical), number(m.Seconds), number(m.PerSecond.Value), between(m.PerSecond), estimate(m.PhysicalPerSecond),
				percentage(m.OnPlace), percentage(m.Doubled), m.Method, fmt.Sprint(m.Lost)))
		}
		e.Plots = append(e.Plots, split(b)...)
	}
	if ways := r.paths(); len(ways) > 0 {
		e.Plots = append(e.Plots, ways...)
		s.Notes = append(s.Notes, fmt.Sprintf("Paths of threads are drawn for the first valid run of each cell, at most %d runs and the first %d moves of each thread.", mostPaths, result.MostStays))
	}
	e.Table = t
	s.Notes = append(s.Notes, "Logical migrations are changes of CPU, physical ones changes of core; on its CPUs is the smallest share of run time in any run. "+method(intervals...))
	s.Exhibits = append(s.Exhibits, first(&s, e))
	for _, places := range r.places() {
		s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Table: places}))
	}
	return s
}

// mostTables is how many cells have a table of where their threads ran.
const mostTables = 24

// places are the shares of run time of each thread on each CPU, in the first
// valid run of each cell.
func (r *Report) places() []page.Table {
	var tables []page.Table
	for _, run := range r.Runs {
		if run.Verdict != result.Valid || run.Cell.Kind != study.Main || run.N != 0 || len(tables) == mostTables {
			continue
		}
		t := page.Table{Caption: "Share of run time on each CPU, %, first run of " + words(run.Cell.Levels)}
		n := 0
		for _, p := range run.Parts {
			if p.Audit == nil {
				continue
			}
			for _, m := range p.Audit.Migrations {
				cells := page.Row(strings.TrimSpace(p.Name + " " + m.Thread))
				for _, share := range m.PerCPU {
					cells = append(cells, page.Cell{Text: decimals(100*share, 1), Shade: share, Shaded: true})
				}
				n = max(n, len(m.PerCPU))
				t.Rows = append(t.Rows, cells)
			}
		}
		if n == 0 {
			continue
		}
		t.Head = []string{"thread"}
		for cpu := range n {
			t.Head = append(t.Head, fmt.Sprint(cpu))
		}
		for k := range t.Rows {
			for len(t.Rows[k]) < len(t.Head) {
				t.Rows[k] = append(t.Rows[k], page.Cell{Text: unknown})
			}
		}
		tables = append(tables, t)
	}
	return tables
}

// validities show how well quell's own signals follow the application's performance.
func (r *Report) validities(map[string]string) page.Section {
	s := page.Section{ID: "signal-validity", Title: "Validity of the signals"}
	t := page.Table{Caption: "Correlation of each signal with the application's own time per unit of work, over runs",
		Head: []string{"signal", "part", "workload", "r", "interval", "rank r", "p", "r with the 95th percentile", "interval", "drift, %/h", "drift of the application, %/h", "runs"}}
	b := plot.Bars{Title: "Correlation with the time per unit of work", Unit: "r", Series: []string{"mean", "95th percentile"}, About: "Two bars per signal and workload, with intervals; the table below has the numbers."}
	var intervals []analyse.Interval
	for _, v := range r.Results.Validities {
		b.Groups = append(b.Groups, plot.Group{Name: v.Signal + " " + v.Workload, Values: []plot.Interval{bounds(v.Pearson), bounds(v.Tail)}})
		intervals = append(intervals, v.Pearson, v.Drift)
		t.Rows = append(t.Rows, page.Row(v.Signal, v.Part, v.Workload, decimals(v.Pearson.Value, 2), between(v.Pearson), decimals(v.Spearman.Value, 2), probability(float64(v.P)),
			decimals(v.Tail.Value, 2), between(v.Tail), estimate(v.Drift), estimate(v.AppDrift), fmt.Sprint(v.N)))
	}
	s.Notes = append(s.Notes, "The 95th percentile is of the iterations' times in a run. For a web server it is of the latencies that its client measures; their mean is the time per unit of work. Drift is the change over the time of the study in equal cells, of the signal and of the application's time per unit of work. "+method(intervals...))
	s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Plots: split(b), Table: t}))
	return s
}
