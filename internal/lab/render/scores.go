package render

import (
	"github.com/quell-dev/quell/internal/lab/analyse"
)

// scores are the scores of each part in each cell.
func (r *Report) scores() section {
	s := section{ID: "score", Title: "Score of each part"}
	t := table{Caption: "Mean over runs", Head: []string{"cell", "part", "workload", "value", "interval", "unit", "better"}}
	var intervals []analyse.Interval
	for _, v := range r.Results.Scores {
		t.Rows = append(t.Rows, row(words(v.Levels), v.Part, v.Workload, number(v.Value.Value), between(v.Value), v.Unit, v.Better))
		intervals = append(intervals, v.Value)
	}
	if len(t.Rows) > 0 {
		s.Notes = append(s.Notes, method(intervals...))
		s.Exhibits = append(s.Exhibits, s.first(exhibit{Table: t}))
	}
	return s
}
