package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
)

// Replay is the data of a report on a replay.
type Replay struct {
	Summary replay.Summary
	Result  *replay.Result
	Score   *replay.Score // nil: not labelled
	Notes   []string      // of the reading: what was skipped, and why
}

// ReplayText writes the report: the numbers, the jobs, the incidents (accusing ones
// first, at most the given number; 0: all) and, for a labelled recording, how often the
// accusations were right.
func ReplayText(w io.Writer, r *Replay, incidents int, s Style) error {
	p := &page{Style: s}
	n := &r.Summary
	p.fact("rule", string(n.Rule))
	p.fact("recording", fmt.Sprintf("%s, %s, %s to %s", plural(n.Machines, "machine"), plural(n.Jobs, "job"),
		p.local(n.From).Format("2006-01-02 15:04:05 MST"), p.local(n.To).Format("2006-01-02 15:04:05 MST")))
	p.fact("samples", fmt.Sprintf("%d of %d rows were compared with a spec", n.Samples, n.Rows))
	p.fact("outliers", share(n.Outliers, n.Samples))
	p.fact("anomalies", fmt.Sprint(n.Anomalies))
	p.fact("incidents", fmt.Sprint(n.Incidents))
	c := plain
	if n.Accusations > 0 {
		c = yellow
	}
	p.colored("accusations", c, fmt.Sprint(n.Accusations))
	for _, note := range r.Notes {
		p.colored("note", yellow, note)
	}
	for _, f := range scoreFacts(r.Score) {
		p.fact(f[0], f[1])
	}
	if r.Score != nil {
		p.causes(r.Score.ByCause)
	}
	p.jobs(r.Result.Jobs)
	if err := p.flush(w); err != nil {
		return err
	}
	if len(r.Result.Incidents) == 0 {
		return nil
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	list := accusingFirst(r.Result.Incidents)
	if incidents > 0 && len(list) > incidents {
		list = list[:incidents]
	}
	shown := make([]incident.Record, len(list))
	for i, inc := range list {
		shown[i] = *inc
	}
	return Incidents(w, shown, len(r.Result.Incidents)-len(shown), s)
}

func accusingFirst(all []*incident.Record) []*incident.Record {
	list := slices.Clone(all)
	slices.SortStableFunc(list, func(a, b *incident.Record) int {
		return -cmp.Compare(min(a.Antagonists+len(a.Findings), 1), min(b.Antagonists+len(b.Findings), 1))
	})
	return list
}

func share(k, of int) string {
	if of == 0 {
		return fmt.Sprint(k)
	}
	return fmt.Sprintf("%d, %.1f %%", k, 100*float64(k)/float64(of))
}

// scoreFacts says how often the accusations in a labelled recording were right: pairs of
// name and text.
func scoreFacts(s *replay.Score) (facts [][2]string) {
	if s == nil {
		return nil
	}
	for _, of := range []struct {
		name  string
		share replay.Share
		what  string
	}{
		{"precision", s.Precision, "accusations were right"},
		{"recall", s.Recall, "labelled episodes had an antagonist accused"},
		{"top-1", s.Top1, "episodes with an accusation had the right one first"},
	} {
		text := "none of none"
		if of.share.N > 0 {
			text = fmt.Sprintf("%.3f [%.3f, %.3f]: %d of %d %s", of.share.Value(), of.share.Low, of.share.High, of.share.K, of.share.N, of.what)
		}
		facts = append(facts, [2]string{of.name, text})
	}
	if s.LeftOut > 0 {
		facts = append(facts, [2]string{"left out", fmt.Sprintf("%s in unlabelled stretches", plural(s.LeftOut, "accusation"))})
	}
	if median, low, high, ok := s.Median(); ok {
		facts = append(facts, [2]string{"after", fmt.Sprintf("%s [%s, %s] until the true antagonist is accused (median of %d)", span(median), span(low), span(high), len(s.Found))})
	}
	return facts
}

var causeHead = []string{"cause", "precision", "recall", "top-1"}

// causeRow is a cause's row, in the order of causeHead.
func causeRow(c *replay.CauseShares) []string {
	row := []string{cmp.Or(c.Cause, "(unknown)")}
	for _, of := range []replay.Share{c.Precision, c.Recall, c.Top1} {
		text := "-"
		if of.N > 0 {
			text = fmt.Sprintf("%d of %d, %.3f [%.3f, %.3f]", of.K, of.N, of.Value(), of.Low, of.High)
		}
		row = append(row, text)
	}
	return row
}

// causes writes the shares by the labels' causes.
func (p *page) causes(all []replay.CauseShares) {
	if len(all) == 0 {
		return
	}
	p.line("")
	var t table
	for _, head := range causeHead {
		t.columns = append(t.columns, column{head: strings.ToUpper(head)})
	}
	for i := range all {
		t.texts(causeRow(&all[i])...)
	}
	t.write(p)
}

// RulesText writes the results of several rules on the same recording, as tables in
// Markdown: for all of it and, if it is labelled, by cause.
func RulesText(w io.Writer, all []*Replay) error {
	var b strings.Builder
	b.WriteString("| rule | samples | outliers | incidents | accusations | precision | recall | top-1 |\n|---|---|---|---|---|---|---|---|\n")
	scored := false
	for _, r := range all {
		n := &r.Summary
		cells := []string{"", "-", "-", "-"}
		if r.Score != nil {
			cells, scored = causeRow(&replay.CauseShares{Shares: r.Score.Shares}), true
		}
		fmt.Fprintf(&b, "| `%s` | %d | %d | %d | %d | %s |\n", n.Rule, n.Samples, n.Outliers, n.Incidents, n.Accusations, strings.Join(cells[1:], " | "))
	}
	if scored {
		fmt.Fprintf(&b, "\n| rule | %s |\n|---|---|---|---|---|\n", strings.Join(causeHead, " | "))
		for _, r := range all {
			if r.Score == nil {
				continue
			}
			for i := range r.Score.ByCause {
				fmt.Fprintf(&b, "| `%s` | %s |\n", r.Summary.Rule, strings.Join(causeRow(&r.Score.ByCause[i]), " | "))
			}
		}
	}
	if len(all) > 0 && len(all[0].Notes) > 0 {
		b.WriteString("\n")
		for _, note := range all[0].Notes {
			b.WriteString("- " + note + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// byImportance sorts jobs with findings first, then by size.
func byImportance(all []replay.Job) []replay.Job {
	list := slices.Clone(all)
	slices.SortStableFunc(list, func(a, b replay.Job) int {
		return -cmp.Or(cmp.Compare(a.Accused+a.Accusing, b.Accused+b.Accusing), cmp.Compare(a.Anomalies, b.Anomalies), cmp.Compare(a.Samples, b.Samples))
	})
	return list
}

// jobs writes the jobs with findings, else the largest.
func (p *page) jobs(all []replay.Job) {
	list := byImportance(all)
	const most = 20
	p.line("")
	t := table{columns: []column{{head: "JOB", least: 16}, {head: "CLASS", drop: 1}, {head: "TASKS", right: true, drop: 2}, {head: "SAMPLES", right: true},
		{head: "OUTLIERS", right: true}, {head: "ANOMALIES", right: true}, {head: "ACCUSES", right: true}, {head: "ACCUSED", right: true}}}
	for _, j := range list[:min(most, len(list))] {
		t.texts(append([]string{cmp.Or(string(j.Job), "(none)"), j.Class.String()}, jobCounts(j)...)...)
	}
	t.write(p)
	if len(list) > most {
		p.line(p.paint(dim, fmt.Sprintf("and %d more", len(list)-most)))
	}
	var classes [3]replay.Job
	for _, j := range all {
		c := &classes[j.Class]
		c.Tasks, c.Judged, c.Outliers, c.Anomalies = c.Tasks+j.Tasks, c.Judged+j.Judged, c.Outliers+j.Outliers, c.Anomalies+j.Anomalies
		c.Accusing, c.Accused = c.Accusing+j.Accusing, c.Accused+j.Accused
	}
	p.line("")
	t = table{columns: []column{{head: "CLASS"}, {head: "TASKS", right: true}, {head: "SAMPLES", right: true},
		{head: "OUTLIERS", right: true}, {head: "ANOMALIES", right: true}, {head: "ACCUSES", right: true}, {head: "ACCUSED", right: true}}}
	for c := len(classes) - 1; c >= 0; c-- {
		if j := classes[c]; j.Tasks > 0 {
			t.texts(append([]string{sample.Class(c).String()}, jobCounts(j)...)...)
		}
	}
	t.write(p)
}

func jobCounts(j replay.Job) []string {
	return []string{fmt.Sprint(j.Tasks), fmt.Sprint(j.Judged), fmt.Sprint(j.Outliers), fmt.Sprint(j.Anomalies), fmt.Sprint(j.Accusing), fmt.Sprint(j.Accused)}
}
