package render

import (
	"fmt"
	"strings"

	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// mostPaths is the largest number of runs whose thread paths are drawn.
const mostPaths = 12

// paths are figures 1 and 2 of paper 000: the CPU, and the core, of each thread over the
// time of the first valid run of a cell. Threads on the same one are drawn with an
// offset. Cells without a migration have none.
func (r *Report) paths() []plot.Plot {
	var plots []plot.Plot
	runs := 0
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Verdict != result.Valid || run.Cell.Kind != study.Main || run.N != 0 || runs == mostPaths {
			continue
		}
		if p := way(run); len(p) > 0 {
			plots = append(plots, p...)
			runs++
		}
	}
	return plots
}

// drawn is a thread that has moved.
type drawn struct {
	name  string
	path  []result.Stay
	cores []int
}

func way(run *result.Run) []plot.Plot {
	var all []drawn
	for _, p := range run.Parts {
		if p.Audit == nil {
			continue
		}
		for _, m := range p.Audit.Migrations {
			if len(m.Path) > 0 {
				all = append(all, drawn{strings.TrimSpace(p.Name + " " + m.Thread), m.Path, p.Audit.Cores})
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	length := (run.Window.To - run.Window.From).Seconds()
	var plots []plot.Plot
	for _, of := range []struct {
		what string
		at   func(d *drawn, cpu int) int
	}{
		{"logical CPU", func(_ *drawn, cpu int) int { return cpu }},
		{"physical core", func(d *drawn, cpu int) int {
			if cpu < len(d.cores) {
				return d.cores[cpu]
			}
			return cpu
		}},
	} {
		c := plot.Chart{Title: fmt.Sprintf("Paths of threads, %s, %s", of.what, words(run.Cell.Levels)), X: "time, s", Y: of.what, Zero: true,
			About: "A line per thread that moved, over the run's window; threads on the same " + of.what + " are drawn side by side. The table has their numbers of moves."}
		for k := range all {
			d := &all[k]
			beside := 0.6 * (float64(k+1)/float64(len(all)+1) - 0.5)
			one := plot.Series{Name: d.name, Index: k, Line: true}
			last := 0.0
			for n, s := range d.path {
				y := float64(of.at(d, s.CPU)) + beside
				if n > 0 {
					one.Add(s.At.Seconds(), last)
				}
				one.Add(s.At.Seconds(), y)
				last = y
			}
			if len(d.path) < result.MostStays {
				one.Add(length, last)
			}
			c.Series = append(c.Series, one)
		}
		plots = append(plots, c.Draw())
	}
	return plots
}
