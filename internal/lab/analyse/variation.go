package analyse

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Variation is how much machines differ that are sold as equal: many instances of one
// size (paper 002, 5.2.1, "Performance variation of random m5.large instances": fifty,
// all of which took 7.98 s).
type Variation struct {
	Levels    []study.Level `json:"levels"` // without the factor's
	Part      string        `json:"part"`
	Unit      string        `json:"unit"`
	Instances []Instance    `json:"instances"` // the fastest first
	// Mean is over instances, each counting once.
	Mean Interval `json:"mean"`
	// Between is the standard deviation between instances in percent, without the
	// deviation between equal runs of one instance; Within is the latter, NaN if no
	// instance has two runs.
	Between Interval   `json:"between_percent"`
	Within  stat.Float `json:"within_percent"`
	// Span is how much longer the slowest takes than the fastest, in percent. Both are
	// selected by their measured values, so noise alone makes the span positive.
	Span stat.Float `json:"span_percent"`
	// P is the probability of such a difference between equal instances (F test of the
	// runs' logarithms); NaN if no instance has two runs.
	P stat.Float `json:"p"`
}

// Instance is one machine of a Variation.
type Instance struct {
	Name  string   `json:"name"` // level of the factor
	Value Interval `json:"value"`
	// Slower is how much longer a unit of work takes than on the median instance, in
	// percent.
	Slower float64 `json:"slower_percent"`
}

// Variations compares the levels of a factor whose levels are nominally equal: the
// instance, host or slot of the run. Groups with fewer than two levels are left out.
func Variations(runs []result.Run, factor string, seed uint64) []Variation {
	type key struct{ rest, part string }
	type group struct {
		v      Variation
		better string
		values map[string]Levels // by instance
	}
	at := map[key]*group{}
	var order []*group
	for _, r := range valid(runs) {
		name := r.Cell.Level(factor)
		if r.Cell.Kind != study.Main || name == "" {
			continue
		}
		rest := without(r.Cell.Levels, factor)
		k := key{rest: study.LevelText(rest)}
		for p, rec := range measured(r) {
			values := figure(r, rec, &p.Workload.Metric)
			if !(total(values) > 0) {
				continue
			}
			k.part = p.Name()
			g := at[k]
			if g == nil {
				g = &group{Variation{Levels: rest, Part: k.part, Unit: p.FigureUnit()}, p.Workload.Metric.Better, map[string]Levels{}}
				at[k] = g
				order = append(order, g)
			}
			g.values[name] = append(g.values[name], values)
		}
	}
	var out []Variation
	for _, g := range order {
		if len(g.values) >= 2 {
			g.v.fill(g.values, g.better, seed)
			out = append(out, g.v)
		}
	}
	return out
}

func (v *Variation) fill(values map[string]Levels, better string, seed uint64) {
	var means []float64
	var byInstance [][]float64 // logarithms of runs
	slowness := map[string]float64{}
	for _, name := range sortedKeys(values) {
		runs := values[name].means()
		i := Instance{Name: name, Value: values[name].mean(seed)}
		v.Instances = append(v.Instances, i)
		means, byInstance = append(means, i.Value.Value), append(byInstance, logs(runs))
		slowness[name] = i.Value.Value
		if better != "lower" {
			slowness[name] = 1 / i.Value.Value
		}
	}
	slices.SortStableFunc(v.Instances, func(a, b Instance) int { return cmp.Compare(slowness[a.Name], slowness[b.Name]) })
	sorted := make([]float64, len(v.Instances))
	for k := range v.Instances {
		sorted[k] = slowness[v.Instances[k].Name]
	}
	middle := stat.Quantile(sorted, 0.5)
	for k := range v.Instances {
		v.Instances[k].Slower = 100 * (sorted[k]/middle - 1)
	}
	v.Span = stat.Float(100 * (sorted[len(sorted)-1]/sorted[0] - 1))
	v.Mean = meanInterval(means, "t over instances")
	var within, p float64
	v.Between, within, p = between(byInstance)
	v.Within, v.P = stat.Float(within), stat.Float(p)
}

// between is the standard deviation between groups in percent, for values that are
// logarithms, with the deviation within groups and the F test's p. The model is the
// one-way random model. The interval is Williams' and Tukey's (Williams, Biometrika
// 1962). It is exact for groups of equal size that differ; for others it uses their
// mean size. If no group has two values, the deviation between equal runs is included,
// and Method says so.
func between(groups [][]float64) (sd Interval, within, p float64) {
	var n, squares, grand, ssw float64
	var means []float64
	for _, g := range groups {
		m, size := stat.Mean(g), float64(len(g))
		means = append(means, m)
		n, squares, grand = n+size, squares+size*size, grand+m*size
		for _, x := range g {
			ssw += (x - m) * (x - m)
		}
	}
	grand /= n
	k := float64(len(groups))
	sd = Interval{Level: level, N: len(groups)}
	low, high := distuv.ChiSquared{K: k - 1}.Quantile(0.5-level/2), distuv.ChiSquared{K: k - 1}.Quantile(0.5+level/2)
	if n == k {
		ss := variance(means) * (k - 1)
		sd.Value, sd.Low, sd.High = deviation(ss/(k-1)), deviation(ss/high), deviation(ss/low)
		sd.Method = "chi-squared over instances; includes variation between equal runs"
		return sd, math.NaN(), math.NaN()
	}
	var ssb float64
	for i, m := range means {
		ssb += float64(len(groups[i])) * (m - grand) * (m - grand)
	}
	size := (n - squares/n) / (k - 1)
	msb, msw := ssb/(k-1), ssw/(n-k)
	f := distuv.F{D1: k - 1, D2: n - k}
	part := func(q, chi float64) float64 { return (ssb - (k-1)*f.Quantile(q)*msw) / (size * chi) }
	sd.Value, sd.Low, sd.High = deviation((msb-msw)/size), deviation(part(0.5+level/2, high)), deviation(part(0.5-level/2, low))
	sd.Method = "Williams and Tukey's over instances"
	switch {
	case msw > 0:
		p = f.Survival(msb / msw)
	case msb == 0:
		p = 1
	}
	return sd, deviation(msw), p
}

// deviation is the percentage that corresponds to a variance of logarithms; a variance
// estimated below 0 counts as 0.
func deviation(variance float64) float64 { return 100 * math.Expm1(math.Sqrt(max(0, variance))) }
