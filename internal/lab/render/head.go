package render

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
)

// HTML writes the report as one self-contained file, Markdown its text and tables.
func HTML(w io.Writer, r *Report) error     { return r.page().HTML(w) }
func Markdown(w io.Writer, r *Report) error { return r.page().Markdown(w) }

// MarkdownWith also shows the plots: file stores an SVG file and returns its path.
func MarkdownWith(w io.Writer, r *Report, file func(svg []byte) (path string, err error)) error {
	return r.page().MarkdownWith(w, file)
}

// page builds the page of the report.
func (r *Report) page() *page.Page {
	r = r.ordered()
	p := &page.Page{Title: r.Study.Name + ": quell lab report", Heading: r.Study.Name}
	lead := func(strong, text, class string) {
		if strong != "" && text != " " {
			p.Lead = append(p.Lead, page.Lead{Strong: strong, Text: text, Class: class})
		}
	}
	lead(strings.Join(r.stamps(), ", "), ": these numbers are comparable only with others of the same stamps.", "stamps")
	lead("Question.", " "+r.Study.Question, "")
	lead("What would refute it.", " "+r.Study.Refute, "")
	p.Head = append(p.Head, r.about(), r.verdicts())
	for _, m := range r.Machines {
		t := page.Table{Caption: "Machine " + m.Name}
		for _, f := range m.Facts {
			t.Rows = append(t.Rows, page.Row(f.Name, f.Value))
		}
		t.Long = len(t.Rows) > 12
		p.Head = append(p.Head, t)
	}
	p.Add(r.checks())
	x := &r.Results
	sections := map[string]struct {
		results int // without any there is no section
		build   func(options map[string]string) page.Section
	}{
		"net-io":          {1, r.networkIO},
		"net-tenants":     {1, r.tenants},
		"degradation":     {len(x.Degradations), r.degradations},
		"mapping":         {len(x.Mappings), r.mappings},
		"interference":    {len(x.Interferences), r.interferences},
		"score":           {len(x.Scores), r.scores},
		"throughput":      {len(x.Systems), r.systems},
		"correlation":     {len(x.Correlations), r.correlations},
		"migration":       {len(x.Migrations), r.migrations},
		"dose-response":   {len(x.Doses), r.doses},
		"variation":       {len(x.Variations), r.variations},
		"signal-validity": {len(x.Validities), r.validities},
	}
	done := map[string]bool{}
	for _, a := range r.Study.Analysis {
		if a.Kind == "energy" { // shown with throughput: the same steps
			a.Kind = "throughput"
		}
		if s := sections[a.Kind]; s.results > 0 && !done[a.Kind] {
			p.Add(s.build(a.Options))
		}
		done[a.Kind] = true
	}
	p.Add(r.missing(), r.insufficient(), r.excludedRuns())
	return p
}

// about identifies the report's study and states what it can detect.
func (r *Report) about() page.Table {
	t := page.Table{Caption: "This study"}
	add := func(name, value string) {
		if value != "" {
			t.Rows = append(t.Rows, page.Row(name, value))
		}
	}
	add("study", r.Study.Name)
	add("description", r.Study.Description)
	add("study file's hash", r.Lock.Hash)
	add("quell", r.Lock.Program)
	if !r.Lock.Created.IsZero() {
		add("begun", r.Lock.Created.UTC().Format("2006-01-02 15:04 UTC"))
	}
	add("design", fmt.Sprintf("%s, %s, seed %d", plural(r.Study.Design.Repetitions, "repetition"), r.Study.Design.Order, r.Study.Design.Seed))
	if len(r.Machines) == 0 {
		add("machine", "not described")
	}
	missed := "none"
	if len(r.Missed) > 0 {
		missed = strings.Join(r.Missed, "; ")
	}
	add("missed requirements", missed)
	if n := r.Results.Noise; n != nil {
		add("noise floor", fmt.Sprintf("%s: two equal runs differ by less in 95 of 100 cases (%s)", percentage(n.Floor), plural(n.Pairs, "pair")))
		add("detectable", fmt.Sprintf("a difference of %s is found in 8 of 10 cases, with %s", percentage(n.Detectable), plural(n.Repetitions, "repetition")))
	} else {
		add("noise floor", "unknown: no equal runs to compare")
	}
	if d := r.Results.Drift; d != nil {
		add("drift", fmt.Sprintf("%s %% an hour of the time per unit of work, within equal cells", estimate(*d)))
	}
	add("cost of observation", cmp.Or(r.Overhead, "not measured"))
	add("energy", cmp.Or(r.energy(), "no energy source"))
	add("CPUs of the other machines", r.platforms())
	add("stamps", strings.Join(r.stamps(), ", "))
	return t
}

// energy names the sources of the runs' energy.
func (r *Report) energy() string {
	sources := map[string]bool{}
	for _, run := range r.Runs {
		if run.Energy != "" {
			sources[run.Energy] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(sources)), ", ")
}

// platforms are the types of the other machines' CPUs, each with the machines that had it.
func (r *Report) platforms() string {
	have := map[string]map[string]bool{}
	for _, run := range r.Runs {
		for _, h := range run.Hosts {
			if have[h.Platform] == nil {
				have[h.Platform] = map[string]bool{}
			}
			have[h.Platform][h.Name] = true
		}
	}
	var all []string
	for _, p := range slices.Sorted(maps.Keys(have)) {
		all = append(all, cmp.Or(p, "unknown")+": "+strings.Join(slices.Sorted(maps.Keys(have[p])), ", "))
	}
	return strings.Join(all, "; ")
}

func (r *Report) verdicts() page.Table {
	t := page.Table{Caption: "Runs", Head: []string{"verdict", "runs", "reasons"}}
	for _, v := range []result.Verdict{result.Valid, result.Invalid, result.Failed, result.Skipped} {
		runs := map[result.Reason]int{}
		for _, run := range r.Runs {
			seen := map[result.Reason]bool{}
			for _, e := range run.Evidence {
				if run.Verdict == v && !seen[e.Reason] {
					runs[e.Reason]++
					seen[e.Reason] = true
				}
			}
		}
		var w []string
		for _, reason := range slices.Sorted(maps.Keys(runs)) {
			w = append(w, fmt.Sprintf("%s %d", reason, runs[reason]))
		}
		t.Rows = append(t.Rows, page.Row(string(v), fmt.Sprint(r.Results.Runs[v]), strings.Join(w, ", ")))
	}
	return t
}

// excludedRuns lists the runs that are not valid, with the evidence.
func (r *Report) excludedRuns() page.Section {
	s := page.Section{ID: "refused", Title: "Runs that are not valid"}
	t := page.Table{Caption: "Runs that are excluded from all results, with the reasons", Head: []string{"run", "verdict", "reason", "part", "when", "measured", "bound", "evidence"}}
	for _, run := range r.Runs {
		if run.Verdict == result.Valid {
			continue
		}
		name := fmt.Sprintf("%s, %d.%d", run.Cell.String(), run.N, run.Try)
		if len(run.Evidence) == 0 {
			t.Rows = append(t.Rows, page.Row(name, string(run.Verdict), "", "", "", "", "", ""))
		}
		for _, e := range run.Evidence {
			measured, bound := "", ""
			if e.Value != 0 || e.Bound != 0 {
				measured, bound = number(e.Value)+" "+e.Unit, number(e.Bound)+" "+e.Unit
			}
			t.Rows = append(t.Rows, page.Row(name, string(run.Verdict), string(e.Reason), e.Role, e.At.Round(time.Millisecond).String(), measured, bound, e.Text))
		}
	}
	if len(t.Rows) > 0 {
		s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Table: t}))
	}
	return s
}

// insufficient names the analyses that gave no result.
func (r *Report) insufficient() page.Section {
	s := page.Section{ID: "insufficient", Title: "Analyses without a result"}
	for _, kind := range slices.Sorted(maps.Keys(r.Results.Insufficient)) {
		s.Notes = append(s.Notes, kind+": "+r.Results.Insufficient[kind]+".")
	}
	return s
}

// method says how the intervals in a list were computed, once for all of them.
func method(intervals ...analyse.Interval) string {
	var names []string
	at := 0.0
	for _, i := range intervals {
		if i.Method != "" && !slices.Contains(names, i.Method) {
			names, at = append(names, i.Method), i.Level
		}
	}
	if len(names) == 0 {
		return "No intervals: too few runs."
	}
	return fmt.Sprintf("Intervals are %s %%: %s.", number(100*at), strings.Join(names, "; "))
}
