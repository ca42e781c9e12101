package evaluation

import (
	"math"
	"strconv"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Sheet is the data of a figure, as rows of a CSV file.
type Sheet struct {
	Name string // of the file, without .csv
	Head []string
	Rows [][]string
}

// Sheets returns the data of every figure. What was not measured is empty.
func (r *Report) Sheets() []Sheet {
	paper := Sheet{"paper", []string{"figure", "what", "paper", "here", "n"}, nil}
	for _, c := range r.Paper {
		paper.Rows = append(paper.Rows, []string{c.Figure, c.What, num(c.Paper), num(float64(c.Here)), strconv.Itoa(c.N)})
	}
	moments := Sheet{"figure14", []string{"identified", "utilisation", "correlation", "cost_by_mean"}, nil}
	for _, m := range r.Moments {
		moments.Rows = append(moments.Rows, []string{strconv.FormatBool(m.Identified), num(m.Utilisation), num(m.Correlation), num(m.Degradation)})
	}
	caps := Sheet{"figure15c_16", []string{"band", "correlation", "sigmas_over_mean", "cost_by_mean", "relative_cost", "relative_misses_per_instruction", "outcome"}, nil}
	for _, c := range r.Caps {
		caps.Rows = append(caps.Rows, []string{string(c.Band), num(c.Correlation), num(c.Sigmas), num(c.Degradation), num(c.RelativeCost), num(c.Misses), string(c.Outcome)})
	}
	all := []Sheet{paper, moments, ratesSheet("figure15a_15b_16a", "correlation", r.ByThreshold), ratesSheet("figure16b", "sigmas_over_mean", r.BySigmas), caps}
	if r.Cluster != nil {
		all = append(all, r.Cluster.sheets()...)
	}
	return all
}

func ratesSheet(name, by string, rates []Rates) Sheet {
	s := Sheet{name, []string{"band", by + "_from", by + "_to", "caps", "true_positives", "false_positives", "noise", "median_relative_cost_of_true_positives"}, nil}
	for _, x := range rates {
		to := ""
		if x.To != 0 {
			to = num(x.To)
		}
		s.Rows = append(s.Rows, []string{string(x.Band), num(x.From), to, strconv.Itoa(x.TruePositive.N), strconv.Itoa(x.TruePositive.K),
			strconv.Itoa(x.FalsePositive.K), strconv.Itoa(x.Noise.K), num(float64(x.Relative))})
	}
	return s
}

func (c *Cluster) sheets() []Sheet {
	one := Sheet{"figure1", []string{"quantile", "tasks", "threads"}, nil}
	for i, level := range Levels() {
		row := []string{num(level), "", ""}
		for k, q := range []Quantiles{c.Tasks, c.Threads} {
			if q.N > 0 {
				row[k+1] = num(float64(q.Values[i]))
			}
		}
		one.Rows = append(one.Rows, row)
	}
	all := []Sheet{one}
	if c.Course != nil {
		s := Sheet{"figure5", []string{"hour", "samples", "mean_cost"}, nil}
		for _, h := range c.Course.Hours {
			s.Rows = append(s.Rows, []string{stamp(h.From), strconv.FormatInt(h.Samples, 10), num(h.Mean)})
		}
		all = append(all, s)
	}
	costs := Sheet{"figure7", []string{"job", "platform", "signal", "variant", "cost_from", "share"}, nil}
	limits := Sheet{"figure7_thresholds", []string{"job", "platform", "signal", "variant", "threshold", "cost", "share_above", "nominal"}, nil}
	for _, j := range c.Costs {
		of := []string{string(j.Job), string(j.Platform), string(j.Signal), j.Variant}
		for _, b := range j.Bins {
			costs.Rows = append(costs.Rows, append(of[:4:4], num(b.From), num(b.Share)))
		}
		for _, t := range j.Thresholds {
			limits.Rows = append(limits.Rows, append(of[:4:4], t.Name, num(t.Cost), num(t.Above), num(t.Nominal)))
		}
	}
	all = append(all, costs, limits)
	if x := c.Capped.Case; x != nil {
		s := Sheet{"figure12b", []string{"ts", "cpu", "threads", "victim_cost"}, nil}
		for _, p := range x.Points {
			s.Rows = append(s.Rows, []string{stamp(p.At), num(float64(p.CPU)), num(float64(p.Threads)), num(float64(p.VictimCost))})
		}
		all = append(all, s)
	}
	return all
}

func stamp(at sample.Millis) string { return strconv.FormatInt(int64(at), 10) }

// num formats a number; NaN and infinities, which were not measured, are empty.
func num(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}
