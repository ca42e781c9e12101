package analyse

import (
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Score is the value of a measured part in a cell, without a comparison.
type Score struct {
	Levels   []study.Level `json:"levels"`
	Part     string        `json:"part"`
	Workload string        `json:"workload"`
	Unit     string        `json:"unit"`
	Better   string        `json:"better"`
	Value    Interval      `json:"value"` // over runs
}

// Scores returns the scores of the cells that the study asks for, without its controls.
func Scores(runs []result.Run) []Score {
	var out []Score
	for _, group := range byCell(valid(runs), study.Main) {
		c := &group[0].Cell
		for _, p := range c.Parts {
			if !p.Measure || p.Idle {
				continue
			}
			m := &p.Workload.Metric
			values, _ := figures(group, p.Name(), m)
			if means := values.means(); len(means) > 0 {
				out = append(out, Score{c.Levels, p.Name(), p.Workload.Name, m.Unit, m.Better, meanInterval(means, "t over runs")})
			}
		}
	}
	return out
}
