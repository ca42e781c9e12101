package analyse

import (
	"iter"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Throughput is the units of work per second of the iterations in a span. An iteration
// that is only partly in the span counts for that part (paper 003, footnote 4). An
// iteration of length 0 counts at its end.
func Throughput(its []result.Iteration, from, to time.Duration) float64 {
	if to <= from {
		return 0
	}
	var units float64
	for _, it := range its {
		length := it.To - it.From
		switch {
		case length <= 0:
			if it.To > from && it.To <= to {
				units += it.Units
			}
		default:
			if both := min(it.To, to) - max(it.From, from); both > 0 {
				units += it.Units * both.Seconds() / length.Seconds()
			}
		}
	}
	return units / (to - from).Seconds()
}

// Bins is the throughput in successive bins of a width over a span: the paper's figure
// 2 uses 6 s. A last bin that is not complete is left out.
func Bins(its []result.Iteration, from, to, width time.Duration) []float64 {
	var bins []float64
	for n := time.Duration(0); width > 0 && n < (to-from)/width; n++ {
		bins = append(bins, Throughput(its, from+n*width, from+(n+1)*width))
	}
	return bins
}

// within returns the iterations that lie wholly in a window.
func within(its []result.Iteration, w result.Window) []result.Iteration {
	return slices.DeleteFunc(slices.Clone(its), func(it result.Iteration) bool { return it.From < w.From || it.To > w.To })
}

// figure returns what a part did in a run: its own metric, or each iteration's work and
// time, the work over the time of a rate and the reverse of a time per unit. For a time
// per unit only iterations with units count.
func figure(run *result.Run, p *result.Part, m *study.Metric) (of []Ratio) {
	if p.Metric != 0 || m.OfRun() && len(p.Iterations) > 0 && !run.Simulated { // it may be 0, e.g. of lost packets
		return []Ratio{{p.Metric, 1}}
	}
	for _, it := range within(p.Iterations, run.Window) {
		seconds := (it.To - it.From).Seconds()
		switch {
		case seconds <= 0:
		case m.Better == "lower" && it.Units > 0:
			of = append(of, Ratio{seconds, it.Units})
		case m.Better != "lower": // an iteration without a unit is time without work
			of = append(of, Ratio{it.Units, seconds})
		}
	}
	return of
}

// work is how many units of work a part did in a run's window: by its own rate if it has one, since a
// command of a fixed length is executed as often, however little it gets done.
func work(run *result.Run, p *result.Part, m *study.Metric) float64 {
	rate := p.Metric
	if rate <= 0 || m.Better == "lower" {
		rate = Throughput(p.Iterations, run.Window.From, run.Window.To)
	}
	return rate * (run.Window.To - run.Window.From).Seconds()
}

// unitTime is a part's time per unit of work in a run, whether its metric is a time or a
// rate; false if there is no value.
func unitTime(run *result.Run, p *result.Part, m *study.Metric) (float64, bool) {
	t := total(figure(run, p, m))
	if m.Better != "lower" {
		t = 1 / t
	}
	return t, finite(t)
}

// partOf returns a part's record by its name, nil if there is none.
func partOf(run *result.Run, name string) *result.Part {
	for i := range run.Parts {
		if run.Parts[i].Name == name {
			return &run.Parts[i]
		}
	}
	return nil
}

// measured are the measured parts of a run that have a record.
func measured(r *result.Run) iter.Seq2[*study.Part, *result.Part] {
	return func(yield func(*study.Part, *result.Part) bool) {
		for i := range r.Cell.Parts {
			p := &r.Cell.Parts[i]
			if rec := partOf(r, p.Name()); rec != nil && p.Measure && !yield(p, rec) {
				return
			}
		}
	}
}

// valid returns the runs with the verdict Valid. A stranger's record may have no parts.
func valid(runs []result.Run) []*result.Run {
	var out []*result.Run
	for i := range runs {
		if runs[i].Verdict == result.Valid && len(runs[i].Cell.Parts) > 0 {
			out = append(out, &runs[i])
		}
	}
	return out
}

// byCell groups runs by cell, in the order of the first appearance of the cells.
func byCell(runs []*result.Run, kind study.CellKind) [][]*result.Run {
	var groups [][]*result.Run
	at := map[string]int{}
	for _, r := range runs {
		if r.Cell.Kind != kind {
			continue
		}
		i, ok := at[r.CellKey]
		if !ok {
			i = len(groups)
			at[r.CellKey] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

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
func Scores(runs []result.Run, seed uint64) []Score {
	var out []Score
	for _, group := range byCell(valid(runs), study.Main) {
		c := &group[0].Cell
		for _, p := range c.Parts {
			if !p.Measure || p.Idle {
				continue
			}
			m := &p.Workload.Metric
			values, _ := figures(group, p.Name(), m)
			if mean := values.mean(seed); mean.N > 0 {
				out = append(out, Score{c.Levels, p.Name(), p.Workload.Name, p.FigureUnit(), m.Better, mean})
			}
		}
	}
	return out
}
