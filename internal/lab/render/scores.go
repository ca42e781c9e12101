package render

import (
	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/analyse"
)

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
