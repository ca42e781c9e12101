package report

import (
	"fmt"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/evaluation"
	htmlpage "github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/format/printable"
)

// paperChapter is the paper's printed values next to these.
func paperChapter(r *evaluation.Report) htmlpage.Section {
	t := htmlpage.Table{Caption: "The paper's values and these", Head: []string{"figure", "what", "the paper", "here", "n"}}
	for _, c := range r.Paper {
		here := formatValue(c.Here)
		if c.N == 0 {
			here = "–"
		}
		t.Rows = append(t.Rows, htmlpage.Row(c.Figure, c.What, fmt.Sprintf("%.2f", c.Paper), here, fmt.Sprint(c.N)))
	}
	return htmlpage.Section{ID: "paper", Title: "The paper's values", Exhibits: []htmlpage.Exhibit{{Table: t}}}
}

// clusterChapters are the figures from samples: 1, 5, 7 and 12b.
func clusterChapters(c *evaluation.Cluster) []htmlpage.Section {
	if c.At == 0 {
		return []htmlpage.Section{{ID: "samples", Title: "Samples", Notes: []string{"The store has no samples of that time."}}}
	}
	machines := htmlpage.Section{ID: "machines", Title: "Tasks and threads of a machine (figure 1)", Notes: []string{
		fmt.Sprintf("%d machines with samples in the hour up to %s.", c.Machines, moment(c.At))},
		Exhibits: []htmlpage.Exhibit{distribution("Tasks of a machine", "Tasks", "tasks of a machine", c.Tasks)}}
	if c.Threads.N > 0 {
		machines.Exhibits = append(machines.Exhibits, distribution("Threads of a machine", "Threads", "threads of a machine", c.Threads))
	}
	all := []htmlpage.Section{machines}
	if c.Course != nil {
		all = append(all, courseChapter(c.Course))
	}
	if len(c.Costs) > 0 {
		all = append(all, costChapter(c.Costs))
	}
	if c.Capped.Caps > 0 {
		all = append(all, cappedChapter(&c.Capped))
	}
	return all
}

func moment(at sample.Millis) string {
	return at.Time().UTC().Format("2006-01-02 15:04 UTC")
}

// courseChapter is figure 5.
func courseChapter(c *evaluation.Course) htmlpage.Section {
	line := plot.Series{Mark: plot.NoMark, Line: true}
	t := htmlpage.Table{Caption: "Mean cost by hour", Head: []string{"hour", "samples", "mean cost"}, Long: true}
	for _, h := range c.Hours {
		line.Add(float64(h.From-c.Hours[0].From)/float64(sample.Millis(24*3_600_000)), h.Mean)
		t.Rows = append(t.Rows, htmlpage.Row(moment(h.From), fmt.Sprint(h.Samples), fmt.Sprintf("%.4g", h.Mean)))
	}
	title := "Mean cost of " + printable.Text(c.Of.String())
	chart := plot.Chart{Title: title, X: "days", Y: "mean cost", Series: []plot.Series{line}, About: title + " hour by hour; the table has the numbers."}
	return htmlpage.Section{ID: "course", Title: "A job's cost over days (figure 5)", Notes: []string{
		fmt.Sprintf("%s, the job with most samples. Coefficient of variation of the hours' means: %.1f %% (the paper: about 4 %%).", printable.Text(c.Of.String()), 100*float64(c.Variation))},
		Exhibits: []htmlpage.Exhibit{{Table: t, Plots: []plot.Plot{chart.Draw()}}}}
}

// costChapter is figure 7.
func costChapter(all []evaluation.JobCost) htmlpage.Section {
	j := &all[0]
	measured := plot.Series{Name: "samples", Mark: plot.NoMark, Line: true}
	chart := plot.Chart{Title: "Costs of " + printable.Text(j.String()), X: "cost", Y: "density", Zero: true}
	var fits []plot.Series
	for i := range j.Fits {
		fits = append(fits, plot.Series{Name: j.Fits[i].Name, Index: i + 1, Line: true})
	}
	for i := 0; i+1 < len(j.Bins); i++ {
		b, width := j.Bins[i], j.Bins[i+1].From-j.Bins[i].From
		if b.From > j.Mean+6*j.StdDev {
			break // the tail would flatten the rest
		}
		at := b.From + width/2
		measured.Add(at, b.Share/width)
		for k := range fits {
			fits[k].Add(at, j.Fits[k].Density(at))
		}
	}
	chart.Series = append([]plot.Series{measured}, fits...)
	chart.About = chart.Title + " and the fitted distributions, up to six standard deviations above the mean; the tables have the fits."
	fitted := htmlpage.Table{Caption: "Distributions fitted to the costs, by AIC (the paper: GEV fits best)", Head: []string{"job", "samples", "mean", "σ", "best", "GEV: location", "scale", "shape"}}
	limits := htmlpage.Table{Caption: fmt.Sprintf("Thresholds from the first half of the time, and the share of the second half's samples above them (quantile and GEV: for %g %%)", 100*evaluation.OutlierShare),
		Head: []string{"job", "threshold", "cost", "above, first half", "above, second half"}}
	for _, j := range all {
		row := []string{printable.Text(j.String()), fmt.Sprint(j.Samples), fmt.Sprintf("%.4g", j.Mean), fmt.Sprintf("%.3g", j.StdDev), "–", "–", "–", "–"}
		if len(j.Fits) > 0 {
			row[4] = j.Fits[0].Name
		}
		for _, f := range j.Fits {
			if f.GEV != nil {
				row[5], row[6], row[7] = fmt.Sprintf("%.4g", f.GEV.Location), fmt.Sprintf("%.3g", f.GEV.Scale), fmt.Sprintf("%.3f", f.GEV.Shape)
			}
		}
		fitted.Rows = append(fitted.Rows, htmlpage.Row(row...))
		for _, t := range j.Thresholds {
			limits.Rows = append(limits.Rows, htmlpage.Row(row[0], t.Name, fmt.Sprintf("%.4g", t.Cost), fmt.Sprintf("%.2f %%", 100*t.Nominal), fmt.Sprintf("%.2f %%", 100*t.Above)))
		}
	}
	c := htmlpage.Section{ID: "costs", Title: "Distribution of costs (figure 7)", Notes: []string{
		"Samples that detection would judge, without those under a cap; those of incidents are included, as in the paper. The best threshold is the one that as many samples exceed later as when it was set."},
		Exhibits: []htmlpage.Exhibit{{Table: fitted, Plots: []plot.Plot{chart.Draw()}}}}
	if len(limits.Rows) > 0 {
		c.Exhibits = append(c.Exhibits, htmlpage.Exhibit{Table: limits})
	}
	return c
}

// cappedChapter is figure 12b.
func cappedChapter(c *evaluation.Capped) htmlpage.Section {
	t := htmlpage.Table{Caption: "Threads of capped tasks as multiples of those before the cap, medians", Head: []string{"caps", "under it", "after it"},
		Rows: [][]htmlpage.Cell{htmlpage.Row(fmt.Sprint(c.Caps), formatValue(c.Under), formatValue(c.After))}}
	e := htmlpage.Exhibit{Table: t}
	sec := htmlpage.Section{ID: "capped", Title: "Capped tasks (figure 12b)"}
	if x := c.Case; x != nil {
		usage := plot.Series{Name: "CPU usage", Line: true}
		threads := plot.Series{Name: "threads", Index: 1, Line: true, Right: true}
		for _, p := range x.Points {
			minutes := float64(p.At-x.From) / 60_000
			add := func(to *plot.Series, v incident.Value) {
				if plot.Finite(float64(v)) {
					to.Add(minutes, float64(v))
				}
			}
			add(&usage, p.CPU)
			add(&threads, p.Threads)
		}
		title := "CPU usage and threads of " + printable.Text(x.Task)
		chart := plot.Chart{Title: title, X: "minutes after the cap began", Y: "CPU-s/s", Right: "threads", Zero: true, Series: []plot.Series{usage, threads},
			About: title + " around its cap."}
		e.Plots = []plot.Plot{chart.Draw()}
		sec.Notes = []string{fmt.Sprintf("The capped task whose number of threads changed most: %s on %s, from %s for %.0f minutes, for %s.",
			printable.Text(x.Task), printable.Text(x.Machine), moment(x.From), float64(x.Ended-x.From)/60_000, printable.Text(x.Victim))}
	}
	sec.Exhibits = []htmlpage.Exhibit{e}
	return sec
}
