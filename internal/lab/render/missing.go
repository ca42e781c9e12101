package render

import (
	"cmp"
	"fmt"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/result"
)

// missing lists the runs of the plan that have no valid record, with the result of the
// last try: these runs are not in the numbers.
func (r *Report) missing() page.Section {
	s := page.Section{ID: "missing", Title: "Runs that are missing"}
	last, tries := map[result.Slot]*result.Run{}, map[result.Slot]int{}
	for i := range r.Runs {
		run := &r.Runs[i]
		k := run.Slot()
		tries[k]++
		if old := last[k]; old == nil || old.Verdict != result.Valid && (run.Verdict == result.Valid || run.Try >= old.Try) {
			last[k] = run
		}
	}
	plan := r.Study.Plan()
	t := page.Table{Caption: "Runs of the plan without a valid record", Head: []string{"cell", "repetition", "tries", "last verdict", "why"}}
	for _, p := range plan {
		c := &p.Cell
		k := result.Slot{Cell: c.Key(), N: p.N}
		run := last[k]
		switch {
		case run == nil:
			t.Rows = append(t.Rows, page.Row(c.String(), fmt.Sprint(k.N), "0", "not tried", "the study ended before this run"))
		case run.Verdict != result.Valid:
			why := "no evidence is recorded"
			if len(run.Evidence) > 0 {
				e := run.Evidence[0]
				why = fmt.Sprintf("%s: %s", e.Reason, cmp.Or(e.Text, "no details are recorded"))
			}
			t.Rows = append(t.Rows, page.Row(c.String(), fmt.Sprint(k.N), fmt.Sprint(tries[k]), string(run.Verdict), why))
		}
	}
	if len(t.Rows) == 0 {
		return s
	}
	s.Notes = append(s.Notes, fmt.Sprintf("%d of %d runs of the plan have no valid record; these results do not include them. quell lab resume repeats them.", len(t.Rows), len(plan)))
	s.Exhibits = append(s.Exhibits, first(&s, page.Exhibit{Table: t}))
	return s
}
