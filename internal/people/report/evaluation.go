package report

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/eval/evaluation"
	htmlpage "github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
)

// EvaluationText writes section 7's tables for a terminal.
func EvaluationText(w io.Writer, r *evaluation.Report, s Style) error {
	d := s.evaluation(r)
	p := &page{Style: s}
	for _, row := range d.Head[0].Rows {
		p.fact(row[0].Text, row[1].Text)
	}
	for _, c := range d.Sections {
		for _, e := range c.Exhibits {
			if e.Table.Long {
				continue // the page and the CSV have it
			}
			p.line("")
			p.line(p.paint(bold, e.Table.Caption))
			t := table{}
			for i, head := range e.Table.Head {
				t.columns = append(t.columns, column{head: head, right: i > 0})
			}
			for _, row := range e.Table.Rows {
				var cells []cell
				for _, c := range row {
					cells = append(cells, cell{text: c.Text})
				}
				t.row(cells...)
			}
			t.write(p)
		}
	}
	return p.flush(w)
}

// EvaluationHTML writes them with their plots, as one self-contained file.
func EvaluationHTML(w io.Writer, r *evaluation.Report, s Style) error {
	return s.evaluation(r).HTML(w)
}

func interval(s evaluation.Share) string {
	if s.N == 0 {
		return "none"
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", s.Value, s.Low, s.High)
}

func formatValue(v incident.Value) string {
	if math.IsNaN(float64(v)) {
		return "–"
	}
	return fmt.Sprintf("%.2f", float64(v))
}

func bounds(from, to float64) string {
	if to == 0 {
		return fmt.Sprintf("%g and more", from)
	}
	return fmt.Sprintf("%g to %g", from, to)
}

func (s Style) evaluation(r *evaluation.Report) *htmlpage.Page {
	facts := htmlpage.Table{Caption: "Summary"}
	add := func(name, text string) { facts.Rows = append(facts.Rows, htmlpage.Row(name, text)) }
	add("incidents", fmt.Sprintf("%d that a neighbour may have caused", r.Incidents))
	add("identified", interval(r.Identified)+" had an antagonist accused")
	if r.Days > 0 {
		add("rate", fmt.Sprintf("%.2f incidents with an accusation per machine-day, over %.1f machine-days (the paper: 0.37)", float64(r.PerDay), r.Days))
	}
	for _, o := range r.OutcomeRate {
		if o.TruePositive.N > 0 {
			add("outcome rate", fmt.Sprintf("%s of %d measured caps for %s victims helped by more than σ (the paper: 0.70, production); median relative cost of those %s (0.52; 0.82 non-production)",
				interval(o.TruePositive), o.TruePositive.N, o.Band, formatValue(o.Relative)))
		}
	}
	if r.Cluster != nil {
		for _, l := range r.Cluster.LeftOut {
			add("left out", fmt.Sprintf("the incidents of %q in some minutes from %s to %s, more than the server answers at once", l.Machine,
				l.From.Time().Format(time.RFC3339), l.To.Time().Format(time.RFC3339)))
		}
	}
	if r.Precision != nil {
		add("labelled precision", fmt.Sprintf("%s: %d of %d accusations named the true antagonist. This is not the outcome rate: it needs labels instead of caps", interval(*r.Precision), r.Precision.K, r.Precision.N))
	}
	d := &htmlpage.Page{Title: "quell evaluate", Heading: "How well it works, as CPI²'s section 7 measures it", Head: []htmlpage.Table{facts}}
	d.Add(paperChapter(r))
	if r.Cluster != nil {
		d.Add(clusterChapters(r.Cluster)...)
	}
	d.Add(s.loadChapter(r), s.outcomeChapter(r), s.reliefChapter(r), offenderChapter(r))
	return d
}

// loadChapter is figure 14.
func (s Style) loadChapter(r *evaluation.Report) htmlpage.Section {
	c := htmlpage.Section{ID: "load", Title: "Antagonism and load (figure 14)", Notes: []string{fmt.Sprintf(
		"Spearman's rank correlation of the machine's load with that of the antagonist: %s. In the paper antagonism does not depend on load.", formatValue(r.LoadRank))}}
	t := htmlpage.Table{Caption: "Incidents by the load of the machine, in quarters", Head: []string{"CPU-s/s of all tasks", "identified", "of", "median correlation", "median cost ÷ mean"}}
	for _, l := range r.Load {
		t.Rows = append(t.Rows, htmlpage.Row(fmt.Sprintf("%.1f to %.1f", l.From, l.To), interval(l.Identified), fmt.Sprint(l.Identified.N), formatValue(l.Correlation), formatValue(l.Degradation)))
	}
	costs := distributions("Cost ÷ mean of the spec, by whether an antagonist was identified (14d)", r.Costs)
	costs.Plots = []plot.Plot{cumulative("Cost ÷ mean of the spec", "cost ÷ mean", r.Costs)}
	first := htmlpage.Exhibit{Table: t, Plots: loadScatters(r.Moments)}
	c.Exhibits = []htmlpage.Exhibit{first}
	if r.Utilisation.N > 0 {
		c.Exhibits = append(c.Exhibits, distribution("CPU utilisation of the machine when a task was accused (14b)", "Utilisation", "share of the CPUs in use", r.Utilisation))
	}
	c.Exhibits = append(c.Exhibits, costs)
	return c
}

// distribution is a table of quantiles with their plot.
func distribution(caption, title, x string, all ...evaluation.Quantiles) htmlpage.Exhibit {
	e := distributions(caption, all)
	e.Plots = []plot.Plot{cumulative(title, x, all)}
	return e
}

// mostPoints is the number of points up to which a scatter has all of them.
const mostPoints = 1000

// thinned is every k-th of n points, at most mostPoints, and what to say of it.
func thinned(n int) (step int, note string) {
	step = max(1, (n+mostPoints-1)/mostPoints)
	if step > 1 {
		note = fmt.Sprintf("; one of %d points is drawn", step)
	}
	return step, note
}

// loadScatters are figures 14a and 14c: incidents with an accusation.
func loadScatters(all []evaluation.Moment) []plot.Plot {
	var some []evaluation.Moment
	for _, m := range all {
		if m.Identified && plot.Finite(m.Utilisation) {
			some = append(some, m)
		}
	}
	if len(some) == 0 {
		return nil
	}
	step, note := thinned(len(some))
	var plots []plot.Plot
	for i, y := range []struct {
		title, axis string
		of          func(evaluation.Moment) float64
	}{
		{"Correlation of the accused (14a)", "correlation", func(m evaluation.Moment) float64 { return m.Correlation }},
		{"Cost ÷ mean of the victim (14c)", "cost ÷ mean", func(m evaluation.Moment) float64 { return m.Degradation }},
	} {
		dots := plot.Series{Index: i, Mark: plot.Dot}
		for k := 0; k < len(some); k += step {
			dots.Add(some[k].Utilisation, y.of(some[k]))
		}
		chart := plot.Chart{Title: y.title, X: "share of the CPUs in use", Y: y.axis, Zero: true, Series: []plot.Series{dots},
			About: y.title + " against the machine's utilisation when the task was accused" + note + "; the table has medians by load."}
		plots = append(plots, chart.Draw())
	}
	return plots
}

// outcomeChapter is figures 15a, 15b, 16a and 16b.
func (s Style) outcomeChapter(r *evaluation.Report) htmlpage.Section {
	c := htmlpage.Section{ID: "outcomes", Title: "Outcomes (figures 15 and 16)", Notes: []string{
		"A true positive is a cap under which the victim's cost fell by more than σ of its spec, a false positive one under which it rose by more, all else is noise. " +
			"Memory requests are not counted."}}
	for _, part := range []struct {
		caption, head, x string
		rates            []evaluation.Rates
	}{
		{"Outcomes by correlation threshold (15a, 16a; median relative cost of true positives: 15b)", "correlation from", "correlation", r.ByThreshold},
		{"Outcomes by how many σ the cost was over the mean (16b)", "σ over the mean", "σ over the mean", r.BySigmas},
	} {
		e := htmlpage.Exhibit{Table: htmlpage.Table{Caption: part.caption, Head: []string{"band", part.head, "caps", "true positive", "false positive", "noise", "relative cost"}}}
		for _, b := range evaluation.Bands() {
			chart := plot.Chart{Title: string(b) + " victims: outcomes", X: part.x, Y: "share of caps", Zero: true, About: part.caption + "; the table below has the numbers."}
			lines := []plot.Series{{Name: "true positive", Index: 0, Mark: plot.Dot, Line: true}, {Name: "false positive", Index: 1, Mark: plot.Dot, Line: true}, {Name: "noise", Index: 2, Mark: plot.Dot, Line: true}}
			for _, x := range part.rates {
				if x.Band != b || x.TruePositive.N == 0 {
					continue
				}
				head := fmt.Sprintf("%g", x.From)
				if part.x != "correlation" {
					head = bounds(x.From, x.To)
				}
				e.Table.Rows = append(e.Table.Rows, htmlpage.Row(string(b), head, fmt.Sprint(x.TruePositive.N), interval(x.TruePositive), interval(x.FalsePositive), interval(x.Noise), formatValue(x.Relative)))
				for i, share := range []evaluation.Share{x.TruePositive, x.FalsePositive, x.Noise} {
					lines[i].AddInterval(x.From, plot.Interval{Value: share.Value, Low: share.Low, High: share.High})
				}
			}
			if chart.Series = lines; len(e.Table.Rows) > 0 {
				e.Plots = append(e.Plots, chart.Draw())
			}
		}
		if len(e.Table.Rows) > 0 {
			c.Exhibits = append(c.Exhibits, e)
		}
	}
	if e, ok := missesExhibit(r); ok {
		c.Exhibits = append(c.Exhibits, e)
	}
	return c
}

// missesExhibit is figure 15c.
func missesExhibit(r *evaluation.Report) (htmlpage.Exhibit, bool) {
	if r.Cluster == nil || r.Cluster.Capped.MissesN == 0 {
		return htmlpage.Exhibit{}, false
	}
	var helped []evaluation.Cap
	for _, x := range r.Caps {
		if x.Outcome == plan.TruePositive && plot.Finite(x.Misses) {
			helped = append(helped, x)
		}
	}
	step, note := thinned(len(helped))
	dots := plot.Series{Mark: plot.Dot}
	for k := 0; k < len(helped); k += step {
		dots.Add(helped[k].RelativeCost, helped[k].Misses)
	}
	chart := plot.Chart{Title: "Relative cache misses per instruction (15c)", X: "relative cost", Y: "relative misses per instruction", Zero: true, Series: []plot.Series{dots},
		About: "The victim's last-level cache misses per instruction under the cap ÷ before it, against its cost under the cap ÷ before it, of true positives" + note + "."}
	t := htmlpage.Table{Caption: "Cache misses per instruction of true positives, under the cap ÷ before it (15c)", Head: []string{"caps", "correlation with the relative cost"},
		Rows: [][]htmlpage.Cell{htmlpage.Row(fmt.Sprint(r.Cluster.Capped.MissesN), formatValue(r.Cluster.Capped.Misses))}}
	return htmlpage.Exhibit{Table: t, Plots: []plot.Plot{chart.Draw()}}, true
}

// reliefChapter is figures 16c and 16d.
func (s Style) reliefChapter(r *evaluation.Report) htmlpage.Section {
	c := htmlpage.Section{ID: "relief", Title: "How much caps help (figures 16c and 16d)"}
	t := htmlpage.Table{Caption: "Cost under the cap ÷ before it, by how bad the victim was (16c)", Head: []string{"band", "cost before ÷ mean", "caps", "median relative cost"}}
	for _, x := range r.ByDegraded {
		if x.N > 0 {
			t.Rows = append(t.Rows, htmlpage.Row(string(x.Band), bounds(x.From, x.To), fmt.Sprint(x.N), formatValue(x.Relative)))
		}
	}
	if len(t.Rows) == 0 {
		c.Notes = []string{"No cap was measured."}
		return c
	}
	all := distributions("Cost under the cap ÷ before it (16d; the paper's median for production: 0.63)", r.Relative)
	all.Plots = []plot.Plot{cumulative("Relative cost", "cost under the cap ÷ before it", r.Relative)}
	c.Exhibits = []htmlpage.Exhibit{{Table: t}, all}
	return c
}

// offenderChapter lists jobs that repeatedly hurt others: which to confine, and which
// to place apart.
func offenderChapter(r *evaluation.Report) htmlpage.Section {
	c := htmlpage.Section{ID: "offenders", Title: "Repeat offenders", Notes: []string{"Pairs of antagonist and victim: jobs to confine, or to place on different machines."}}
	const most = 20
	t := htmlpage.Table{Caption: "Pairs of jobs, by how often they met in incidents", Head: []string{"antagonist", "victim", "accused", "caps", "helped", "median relative cost"}}
	for i, o := range r.Offenders {
		if i == most {
			t.Caption += fmt.Sprintf(" (the first %d of %d)", most, len(r.Offenders))
			break
		}
		t.Rows = append(t.Rows, htmlpage.Row(string(o.Antagonist), string(o.Pair.Victim), fmt.Sprint(o.Accused), fmt.Sprint(o.Helped.N), interval(o.Helped), formatValue(o.Relative)))
	}
	if len(t.Rows) == 0 {
		c.Notes = []string{"No task was accused."}
		return c
	}
	c.Exhibits = []htmlpage.Exhibit{{Table: t}}
	return c
}

func distributions(caption string, all []evaluation.Quantiles) htmlpage.Exhibit {
	e := htmlpage.Exhibit{Table: htmlpage.Table{Caption: caption, Head: []string{"of", "n"}}}
	for _, level := range evaluation.Levels() {
		e.Table.Head = append(e.Table.Head, fmt.Sprintf("%g %%", 100*level))
	}
	for _, q := range all {
		if q.N == 0 {
			continue
		}
		row := htmlpage.Row(seriesName(q), fmt.Sprint(q.N))
		for _, v := range q.Values {
			row = append(row, htmlpage.Cell{Text: formatValue(v)})
		}
		e.Table.Rows = append(e.Table.Rows, row)
	}
	return e
}

func seriesName(q evaluation.Quantiles) string {
	if q.Band == "" {
		return q.Of
	}
	return string(q.Band) + ", " + q.Of
}

func cumulative(title, x string, all []evaluation.Quantiles) plot.Plot {
	chart := plot.Chart{Title: title, X: x, Y: "share up to it", Zero: true, About: title + ", cumulative, at the quantiles of the table below."}
	for i, q := range all {
		if q.N == 0 {
			continue
		}
		line := plot.Series{Name: seriesName(q), Index: i, Mark: plot.Dot, Line: true}
		for k, level := range evaluation.Levels() {
			line.Add(float64(q.Values[k]), level)
		}
		chart.Series = append(chart.Series, line)
	}
	return chart.Draw()
}
