package analyse

import (
	"maps"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// DegradationName is the name of the degradation's row among the events.
const DegradationName = "degradation"

// Correlations is the matrix of table 6 of paper 000: how hardware and software events
// correlate with each other and with the degradation in time. A study that sets a knob
// of the machine (e.g. prefetching) has one matrix for each setting.
type Correlations struct {
	// Levels are the setting's, knob and value; empty if no knob is set.
	Levels []study.Level `json:"levels,omitempty"`
	Names  []string      `json:"names"` // DegradationName first
	// PerVM is the paper's: correlated over each machine's solo and co-runs, then
	// averaged over machines. VMs is the number of machines that an entry averages.
	PerVM Matrix  `json:"per_vm"`
	VMs   [][]int `json:"vms"`
	// PerVMLow and PerVMHigh are the bounds of its 95 % interval, t over machines; they
	// are quell's addition to the paper.
	PerVMLow  Matrix `json:"per_vm_low"`
	PerVMHigh Matrix `json:"per_vm_high"`
	// Pooled is over all machines' points, each event divided by its solo value.
	Pooled   Matrix `json:"pooled"`
	Spearman Matrix `json:"spearman"` // pooled
	// The bounds of their 95 % intervals; Method is the method of all of them.
	PooledLow    Matrix `json:"pooled_low"`
	PooledHigh   Matrix `json:"pooled_high"`
	SpearmanLow  Matrix `json:"spearman_low"`
	SpearmanHigh Matrix `json:"spearman_high"`
	Method       string `json:"method"`
	P            Matrix `json:"p"` // permutation, of Pooled
	Q            Matrix `json:"q"` // adjusted for the false discovery rate, over the upper triangle
	N            int    `json:"n"` // pooled points
	// Missing gives, for requested events that were not counted, the reason.
	Missing map[string]string `json:"missing,omitempty"`
}

// perms is the number of permutations for a p.
const perms = 2000

// point holds the counts of a machine in one run, per unit of its work, and its time
// per unit.
type point map[string]float64

// partPoints is a role's workload at a load, with a number of threads, on a host: its points are its
// runs alone and with others.
type partPoints struct{ solo, points []point }

// column returns the values of two names in the points that have both.
func column(points []point, a, b string) (x, y []float64) {
	for _, p := range points {
		va, okA := p[a]
		vb, okB := p[b]
		if okA && okB {
			x, y = append(x, va), append(y, vb)
		}
	}
	return x, y
}

// relative returns a machine's points, each value divided by its mean alone; nil if the
// machine was never alone.
func (m *partPoints) relative() []point {
	if len(m.solo) == 0 {
		return nil
	}
	var all []point
	for _, p := range m.points {
		rel := point{}
		for name, v := range p {
			var base []float64
			for _, s := range m.solo {
				if alone, ok := s[name]; ok { // it was counted there
					base = append(base, alone)
				}
			}
			if r := v / stat.Mean(base); finite(r) {
				rel[name] = r
			}
		}
		all = append(all, rel)
	}
	return all
}

// Events correlates the events of every measured part with its degradation in time per
// unit of work, separately for each setting of the knobs. It returns none if no event
// was counted.
func Events(runs []result.Run, seed uint64) []Correlations {
	var settings [][]study.Level
	by := map[int][]*result.Run{}
	for _, r := range valid(runs) {
		if r.Cell.Kind != study.Main && r.Cell.Kind != study.Solo {
			continue
		}
		ls := r.Cell.Conditions()
		k := slices.IndexFunc(settings, func(s []study.Level) bool { return slices.Equal(s, ls) })
		if k < 0 {
			k = len(settings)
			settings = append(settings, ls)
		}
		by[k] = append(by[k], r)
	}
	var out []Correlations
	for k, ls := range settings {
		if c, ok := correlations(by[k], seed); ok {
			c.Levels = ls
			out = append(out, c)
		}
	}
	return out
}

// machines returns the machines of the runs, in the order of their first appearance,
// the events counted on them, and why other events are missing.
func machines(runs []*result.Run) (all []*partPoints, names []string, missing map[string]string) {
	at, counted := map[string]int{}, map[string]bool{}
	missing = map[string]string{}
	for _, r := range runs {
		for p, rec := range measured(r) {
			maps.Copy(missing, rec.Missing)
			t, ok := unitTime(r, rec, &p.Workload.Metric)
			if !ok {
				continue
			}
			pt := point{DegradationName: t}
			// Counts are per unit of work, or a longer window alone would count.
			units := work(r, rec, &p.Workload.Metric)
			for event, n := range rec.Events {
				if units > 0 {
					pt[event] = n / units
					counted[event] = true
				}
			}
			k, known := at[identity(p)]
			if !known {
				k = len(all)
				at[identity(p)] = k
				all = append(all, &partPoints{})
			}
			all[k].points = append(all[k].points, pt)
			if r.Cell.Kind == study.Solo {
				all[k].solo = append(all[k].solo, pt)
			}
		}
	}
	return all, append([]string{DegradationName}, sortedKeys(counted)...), missing
}

func correlations(runs []*result.Run, seed uint64) (Correlations, bool) {
	vms, names, missing := machines(runs)
	out := Correlations{Names: names, Missing: missing}
	if len(names) < 2 {
		return out, false
	}
	n := len(names)
	for _, m := range []*Matrix{&out.PerVM, &out.PerVMLow, &out.PerVMHigh, &out.Pooled, &out.PooledLow, &out.PooledHigh,
		&out.Spearman, &out.SpearmanLow, &out.SpearmanHigh, &out.P, &out.Q} {
		*m = make(Matrix, n)
		for i := range *m {
			(*m)[i] = slices.Repeat([]stat.Float{stat.Float(math.NaN())}, n)
		}
	}
	out.VMs = make([][]int, n)
	groups := make([][]point, 0, len(vms)) // of each machine that also ran alone
	for _, v := range vms {
		if rel := v.relative(); rel != nil {
			groups = append(groups, rel)
			out.N += len(rel)
		}
	}
	pooled := slices.Concat(groups...)
	var flat []float64
	var at [][2]int
	for i := range n {
		out.VMs[i] = make([]int, n)
	}
	for i := range n {
		for j := i + 1; j < n; j++ {
			both := func(m Matrix, v float64) { m[i][j], m[j][i] = stat.Float(v), stat.Float(v) }
			var rs []float64
			for _, v := range vms {
				x, y := column(v.points, names[i], names[j])
				if r := stat.Pearson(x, y); !math.IsNaN(r) && len(x) >= 3 {
					rs = append(rs, r)
				}
			}
			if out.VMs[i][j], out.VMs[j][i] = len(rs), len(rs); len(rs) > 0 {
				v := meanInterval(rs, "")
				both(out.PerVM, v.Value)
				// A correlation is within −1 and 1.
				both(out.PerVMLow, max(v.Low, -1))
				both(out.PerVMHigh, min(v.High, 1))
			}
			var some []Pairs
			for _, g := range groups {
				x, y := column(g, names[i], names[j])
				some = append(some, Pairs{x, y})
			}
			r, rank := CorrelationInterval(some, stat.Pearson), CorrelationInterval(some, stat.Spearman)
			out.Method = r.Method
			both(out.Pooled, r.Value)
			both(out.PooledLow, r.Low)
			both(out.PooledHigh, r.High)
			both(out.Spearman, rank.Value)
			both(out.SpearmanLow, rank.Low)
			both(out.SpearmanHigh, rank.High)
			x, y := column(pooled, names[i], names[j])
			both(out.P, PermutationP(x, y, stat.Pearson, perms, seed))
			flat, at = append(flat, out.P.At(i, j)), append(at, [2]int{i, j})
		}
	}
	for k, q := range Adjust(flat) {
		i, j := at[k][0], at[k][1]
		out.Q[i][j], out.Q[j][i] = stat.Float(q), stat.Float(q)
	}
	return out, true
}
