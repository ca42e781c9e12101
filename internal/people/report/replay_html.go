package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/eval/replay"
	evalstat "github.com/quell-dev/quell/internal/eval/stat"
	htmlpage "github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
)

const (
	// drawnIncidents and drawnJobs are how many a page draws.
	drawnIncidents = 60
	drawnJobs      = 12
)

// ReplayHTML writes a replay as one self-contained file: it runs no script and loads
// nothing.
func ReplayHTML(w io.Writer, r *Replay, s Style) error { return s.document(r).HTML(w) }

func (s Style) document(r *Replay) *htmlpage.Page {
	n := &r.Summary
	facts := htmlpage.Table{Caption: "Recording and results", Rows: [][]htmlpage.Cell{
		htmlpage.Row("recording", fmt.Sprintf("%s, %s, %s to %s", plural(n.Machines, "machine"), plural(n.Jobs, "job"), s.instant(n.From), s.instant(n.To))),
		htmlpage.Row("rows", fmt.Sprintf("%d; skipped: %d bad, %d not in time order, %d of an unknown signal", n.Rows, n.Bad, n.Late, n.Unknown)),
		htmlpage.Row("samples compared with a spec", fmt.Sprint(n.Samples)),
		htmlpage.Row("outliers", share(n.Outliers, n.Samples)),
		htmlpage.Row("anomalies", fmt.Sprint(n.Anomalies)),
		htmlpage.Row("incidents", fmt.Sprint(n.Incidents)),
		htmlpage.Row("accusations", fmt.Sprint(n.Accusations)),
	}}
	for _, f := range scoreFacts(r.Score) {
		facts.Rows = append(facts.Rows, htmlpage.Row(f[0], f[1]))
	}
	for _, note := range r.Notes {
		facts.Rows = append(facts.Rows, htmlpage.Row("note", note))
	}
	d := &htmlpage.Page{Title: "quell replay: rule " + string(n.Rule), Heading: "Replay with rule " + string(n.Rule), Head: []htmlpage.Table{facts}, Sections: []htmlpage.Section{s.incidentChapter(r)}}
	for _, c := range []htmlpage.Section{causeChapter(r.Score), s.wrongChapter(r.Score), s.costChapter(r.Result.Costs), jobChapter(r.Result.Jobs)} {
		if len(c.Exhibits) > 0 {
			d.Sections = append(d.Sections, c)
		}
	}
	return d
}

func (s Style) instant(m sample.Millis) string { return s.local(m).Format("2006-01-02 15:04:05 MST") }

// incidentChapter draws incidents as CPI²'s figures 8 to 13: the victim's cost and the
// suspects' usage over the same time.
func (s Style) incidentChapter(r *Replay) htmlpage.Section {
	c := htmlpage.Section{ID: "incidents", Title: "Incidents", Notes: []string{
		"The victim's cost on the left axis, the usage of its main suspects on the right one. No task was capped: a recording cannot react."}}
	list := accusingFirst(r.Result.Incidents)
	if len(list) == 0 {
		c.Notes = []string{"There were none."}
		return c
	}
	table := htmlpage.Table{Caption: "All incidents", Head: []string{"found", "id", "machine", "victim", "signal", "kind", "best suspect", "level", "outcome", "reason"}, Long: true}
	for i, inc := range list {
		suspect, level := mainSuspect(inc)
		reason := strings.Join(slices.DeleteFunc([]string{inc.Reason, inc.NotDone, inc.Advice}, func(s string) bool { return s == "" }), "; ")
		table.Rows = append(table.Rows, htmlpage.Row(s.instant(inc.Opened), inc.ID, inc.Machine, string(inc.Victim.Name), string(inc.Signal), inc.Kind.String(), suspect, level, s.state(inc), reason))
		if i < drawnIncidents && len(inc.Times) > 1 {
			c.Exhibits = append(c.Exhibits, s.incidentExhibit(inc))
		}
	}
	if len(list) > len(c.Exhibits) {
		c.Notes = append(c.Notes, fmt.Sprintf("%d of %d are drawn, those with an accusation first; the table has all.", len(c.Exhibits), len(list)))
	}
	c.Exhibits = append(c.Exhibits, htmlpage.Exhibit{Table: table})
	return c
}

func (s Style) incidentExhibit(inc *incident.Record) htmlpage.Exhibit {
	sig, _ := sample.LookupSignal(inc.Signal)
	e := htmlpage.Exhibit{Title: fmt.Sprintf("%s, %s", inc.Victim.Name, s.instant(inc.Opened)), Notes: []string{finding(inc) + "."}}
	chart := plot.Chart{Title: string(inc.Signal) + " of the victim and usage of suspects", X: "minutes from the first sample", Y: string(inc.Signal) + ", " + sig.Unit, Right: "usage, CPU-s/s", Zero: true,
		About: fmt.Sprintf("The %s of %s over time, its threshold, and the CPU usage of its main suspects; the table below ranks them.", inc.Signal, inc.Victim.Name)}
	at := func(i int) float64 { return inc.Times[i].Sub(inc.Times[0]).Minutes() }
	victim := plot.Series{Name: string(inc.Signal) + " of the victim", Index: 0, Mark: plot.Dot, Line: true}
	limit := plot.Series{Name: "threshold", Line: true, Quiet: true}
	limit.Add(at(0), inc.Threshold)
	limit.Add(at(len(inc.Times)-1), inc.Threshold)
	for i, v := range inc.VictimCost {
		victim.Add(at(i), float64(v))
	}
	chart.Series = append(chart.Series, limit, victim)
	for k, t := range inc.Usage {
		line := plot.Series{Name: "usage of " + string(t.Task), Index: k + 1, Line: true, Right: true}
		for i, v := range t.Usage {
			line.Add(at(i), float64(v))
		}
		chart.Series = append(chart.Series, line)
	}
	against := plot.Chart{Title: string(inc.Signal) + " against usage", X: "usage of a suspect, CPU-s/s", Y: string(inc.Signal) + ", " + sig.Unit, Zero: true,
		About: fmt.Sprintf("The %s of %s against the CPU usage of its main suspects in the same intervals.", inc.Signal, inc.Victim.Name)}
	for k, t := range inc.Usage {
		points := plot.Series{Name: string(t.Task), Index: k + 1, Mark: plot.Dot}
		for i, v := range t.Usage {
			points.Add(float64(v), float64(inc.VictimCost[i]))
		}
		against.Series = append(against.Series, points)
	}
	e.Plots = []plot.Plot{chart.Draw(), against.Draw()}
	e.Table = htmlpage.Table{Caption: "Suspects", Head: []string{"suspect", "job", "class", "level", "CPU-s/s", "why"}}
	for i, sus := range inc.Suspects {
		why := "not named"
		switch {
		case sus.Excluded != "":
			why = "excluded: " + sus.Excluded
		case i < inc.Antagonists:
			why = "antagonist"
		}
		e.Table.Rows = append(e.Table.Rows, htmlpage.Row(string(sus.Name), string(sus.Job), class(sus.Task), levelText(inc, &sus), s.number(sus.Usage), why))
	}
	return e
}

// costChapter shows the costs of jobs as CPI²'s figure 7: a histogram and distributions
// fitted to it.
func (s Style) costChapter(all []replay.Costs) htmlpage.Section {
	c := htmlpage.Section{ID: "costs", Title: "Costs of jobs", Notes: []string{
		"Costs of all samples of a job that detection uses, including those of incidents, and four distributions fitted to them: normal and log-normal by moments, gamma by maximum likelihood, GEV by probability-weighted moments. The lowest AIC fits best."}}
	for _, job := range all {
		if len(c.Exhibits) == drawnJobs {
			break
		}
		if fits := evalstat.Fits(job.Values); len(fits) > 0 && len(job.Values) >= 20 {
			c.Exhibits = append(c.Exhibits, s.costExhibit(&job, fits))
		}
	}
	return c
}

func (s Style) costExhibit(job *replay.Costs, fits []evalstat.Fit) htmlpage.Exhibit {
	sig, _ := sample.LookupSignal(job.Signal)
	var m stat.Moments
	for _, v := range job.Values {
		m.Add(v, 1)
	}
	limit := m.Mean + 2*m.StdDev()
	over := 0
	for _, v := range job.Values {
		if v > limit {
			over++
		}
	}
	name := cmp.Or(string(job.Job), "(no job)")
	e := htmlpage.Exhibit{Title: name, Notes: []string{fmt.Sprintf("%s of %s: mean %s, σ %s; %.1f %% are over mean + 2σ.", plural(job.Seen, "sample"), job.Signal, s.number(m.Mean), s.number(m.StdDev()), 100*float64(over)/float64(len(job.Values)))}}
	chart := plot.Chart{Title: fmt.Sprintf("%s of %s", job.Signal, name), X: string(job.Signal) + ", " + sig.Unit, Y: "density", Zero: true,
		About: "A histogram of costs and the densities fitted to it; the table below has their parameters."}
	// The axis ends at the 99.5th percentile; extreme values would compress the rest.
	sorted := slices.Clone(job.Values)
	slices.Sort(sorted)
	low, high := sorted[0], sorted[min(len(sorted)-1, len(sorted)*995/1000)]
	bins := min(60, max(10, int(math.Sqrt(float64(len(sorted))))))
	width := (high - low) / float64(bins)
	if !(width > 0) {
		return e
	}
	counts := make([]float64, bins)
	for _, v := range sorted {
		if v <= high {
			counts[min(bins-1, int((v-low)/width))]++
		}
	}
	histogram := plot.Series{Name: "samples", Line: true, Quiet: true}
	histogram.Add(low, 0)
	for i, n := range counts {
		density := n / (float64(len(sorted)) * width)
		histogram.Add(low+float64(i)*width, density)
		histogram.Add(low+float64(i+1)*width, density)
	}
	histogram.Add(high, 0)
	chart.Series = append(chart.Series, histogram)
	e.Table = htmlpage.Table{Caption: "Fits", Head: []string{"distribution", "mean", "σ", "AIC over the best", "log likelihood", "parameters"}}
	for k, f := range fits {
		line := plot.Series{Name: f.Name, Index: k, Line: true}
		const points = 120
		for i := range points + 1 {
			x := low + (high-low)*float64(i)/points
			line.Add(x, math.Exp(f.LogProb(x)))
		}
		chart.Series = append(chart.Series, line)
		e.Table.Rows = append(e.Table.Rows, htmlpage.Row(f.Name, s.number(f.Mean()), s.number(f.StdDev()), fmt.Sprintf("%.1f", f.AIC-fits[0].AIC), fmt.Sprintf("%.1f", f.LogLikelihood), s.parameters(f.Distribution, limit)))
	}
	e.Plots = []plot.Plot{chart.Draw()}
	return e
}

func (s Style) parameters(d evalstat.Distribution, limit float64) string {
	switch d := d.(type) {
	case evalstat.Normal:
		return fmt.Sprintf("μ %s, σ %s", s.number(d.Mu), s.number(d.Sigma))
	case evalstat.LogNormal:
		return fmt.Sprintf("μ %s, σ %s of the logarithm", s.number(d.Mu), s.number(d.Sigma))
	case evalstat.Gamma:
		return fmt.Sprintf("shape %s, scale %s", s.number(d.Alpha), s.number(1/d.Beta))
	case evalstat.GEV:
		return fmt.Sprintf("location %s, scale %s, shape %s; %.1f %% over mean + 2σ", s.number(d.Location), s.number(d.Scale), s.number(d.Shape), 100*d.Above(limit))
	}
	return ""
}

func jobChapter(all []replay.Job) htmlpage.Section {
	c := htmlpage.Section{ID: "jobs", Title: "Jobs"}
	t := htmlpage.Table{Caption: "Findings of each job", Head: []string{"job", "class", "tasks", "samples", "judged", "outliers", "anomalies", "accuses", "accused"}}
	const most = 2000
	for i, j := range byImportance(all) {
		if i == most {
			c.Notes = append(c.Notes, fmt.Sprintf("The first %d of %d.", most, len(all)))
			break
		}
		t.Rows = append(t.Rows, htmlpage.Row(string(j.Job), j.Class.String(), fmt.Sprint(j.Tasks), fmt.Sprint(j.Samples), fmt.Sprint(j.Judged), fmt.Sprint(j.Outliers),
			fmt.Sprint(j.Anomalies), fmt.Sprint(j.Accusing), fmt.Sprint(j.Accused)))
	}
	if len(t.Rows) > 0 {
		c.Exhibits = []htmlpage.Exhibit{{Table: t}}
	}
	return c
}

// causeChapter has the shares of a labelled recording by cause.
func causeChapter(score *replay.Score) htmlpage.Section {
	c := htmlpage.Section{ID: "causes", Title: "By cause"}
	if score == nil || len(score.ByCause) == 0 {
		return c
	}
	t := htmlpage.Table{Caption: "How often accusations were right, by the labels' causes, with 95 % intervals; none is outside all labels", Head: causeHead}
	for i := range score.ByCause {
		t.Rows = append(t.Rows, htmlpage.Row(causeRow(&score.ByCause[i])...))
	}
	c.Exhibits = []htmlpage.Exhibit{{Table: t}}
	return c
}

// wrongChapter lists every wrong case of a labelled recording.
func (s Style) wrongChapter(score *replay.Score) htmlpage.Section {
	c := htmlpage.Section{ID: "wrong", Title: "Wrong and missed"}
	if score == nil {
		return c
	}
	wrong := htmlpage.Table{Caption: "Wrong accusations", Head: []string{"made", "machine", "victim", "accused", "correlation", "cause", "incident"}}
	for _, a := range score.Wrong() {
		wrong.Rows = append(wrong.Rows, htmlpage.Row(s.instant(a.At), a.Machine, string(a.Victim), string(a.Suspect), fmt.Sprintf("%.2f", a.Correlation), a.Cause, a.Incident))
	}
	missed := htmlpage.Table{Caption: "Episodes without a correct accusation", Head: []string{"from", "to", "machine", "victim", "antagonists", "causes"}}
	for _, m := range score.Missed {
		missed.Rows = append(missed.Rows, htmlpage.Row(s.instant(m.From), s.instant(m.To), m.Machine, string(m.Victim), fmt.Sprint(m.Antagonists), fmt.Sprint(m.Causes)))
	}
	for _, t := range []htmlpage.Table{wrong, missed} {
		if len(t.Rows) > 0 {
			c.Exhibits = append(c.Exhibits, htmlpage.Exhibit{Table: t})
		}
	}
	return c
}
