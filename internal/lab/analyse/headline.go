package analyse

import (
	"math"
	"slices"
	"strings"
)

// Headline holds the statistics of paper 000, section 5, for its figure 4: over all
// sets of workloads the least, the largest, the arithmetic and the geometric mean of
// the sets' averages and of their worst values. The paper has no intervals. Here the
// least and the largest have their own set's interval, the means have t over sets (of
// the logarithms for the geometric mean).
type Headline struct {
	Sets    int           `json:"sets"`
	Left    []string      `json:"left_out,omitempty"` // the sets that do not count
	Average SetStatistics `json:"average"`
	Worst   SetStatistics `json:"worst"`
}

// SetStatistics holds the statistics of a value over sets of workloads.
type SetStatistics struct {
	Least     Interval `json:"least"`
	Largest   Interval `json:"largest"`
	Mean      Interval `json:"mean"`
	Geometric Interval `json:"geometric"` // NaN where a value is 0 or less
}

// headline returns nil for fewer than two sets. Only the named sets count, all if none is
// named: a paper's means are of its own sets, and a study may have others too.
func headline(sets []MappingResult, named []string) *Headline {
	h := &Headline{}
	var average, worst []Interval
	for i := range sets {
		if len(named) > 0 && !slices.ContainsFunc(named, func(name string) bool { return strings.HasSuffix(" "+sets[i].Set, "="+name) }) {
			h.Left = append(h.Left, sets[i].Set)
			continue
		}
		average, worst = append(average, sets[i].Interval), append(worst, sets[i].WorstInterval)
	}
	if h.Sets = len(average); h.Sets < 2 {
		return nil
	}
	h.Average, h.Worst = over(average), over(worst)
	return h
}

func over(of []Interval) SetStatistics {
	o := SetStatistics{Least: of[0], Largest: of[0]}
	var values, logarithms []float64
	for _, i := range of {
		if i.Value < o.Least.Value {
			o.Least = i
		}
		if i.Value > o.Largest.Value {
			o.Largest = i
		}
		values = append(values, i.Value)
		logarithms = append(logarithms, math.Log(i.Value)) // NaN for a negative value, −∞ for 0
	}
	o.Mean = meanInterval(values, "t over sets of workloads")
	o.Geometric = meanInterval(logarithms, "t over sets of workloads, of logarithms")
	if !finite(logarithms...) {
		o.Geometric = meanInterval(nil, "none: a value is not above 0")
		o.Geometric.N = len(of)
		return o
	}
	o.Geometric = o.Geometric.apply(math.Exp)
	return o
}
