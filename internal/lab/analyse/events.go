package analyse

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// DegradationName is the row of the degradation among the events.
const DegradationName = "degradation"

// Correlations is the matrix of table 6 of paper 000: how hardware and software
// events go with each other and with the degradation in time.
type Correlations struct {
	Names []string `json:"names"` // DegradationName first
	// PerVM is the paper's: correlated over each machine's solo and co-runs,
	// then averaged over machines. VMs is how many machines an entry averages.
	PerVM Matrix  `json:"per_vm"`
	VMs   [][]int `json:"vms"`
	// PerVMLow and PerVMHigh are the bounds of its 95 % interval, t over
	// machines; ours, not the paper's.
	PerVMLow  Matrix `json:"per_vm_low"`
	PerVMHigh Matrix `json:"per_vm_high"`
	// Pooled are all machines' points at once, each event over its solo value.
	Pooled   Matrix `json:"pooled"`
	Spearman Matrix `json:"spearman"` // pooled
	P        Matrix `json:"p"`        // permutation, of Pooled
	Q        Matrix `json:"q"`        // adjusted for the false discovery rate, over the upper triangle
	N        int    `json:"n"`        // pooled points
	// Missing says of events that were asked for why they are not there.
	Missing map[string]string `json:"missing,omitempty"`
}

// perms is how many permutations a p is from.
const perms = 2000

// Events correlates the events of every measured part with its degradation in
// time per unit of work. A machine is a role's workload; its points are its runs alone
// and beside others.
func Events(runs []result.Run, seed uint64) (Correlations, bool) {
	type point struct{ values map[string]float64 }
	type vm struct {
		solo   []point
		points []point
	}
	vms := map[string]*vm{}
	var order []string
	names := map[string]bool{}
	out := Correlations{Missing: map[string]string{}}
	for _, r := range valid(runs) {
		if r.Cell.Kind != study.Main && r.Cell.Kind != study.Solo {
			continue
		}
		for i := range r.Cell.Parts {
			p := &r.Cell.Parts[i]
			rec := partOf(r, p.Name())
			if rec == nil || !p.Measure {
				continue
			}
			for event, why := range rec.Missing {
				out.Missing[event] = why
			}
			v := figure(r, rec, &p.Workload.Metric)
			if len(v) == 0 {
				continue
			}
			t := mean(v)
			if p.Workload.Metric.Better != "lower" {
				t = 1 / t
			}
			pt := point{map[string]float64{DegradationName: t}}
			// Counts per unit of work, or a longer window alone would count.
			units := Throughput(rec.Iterations, r.Window.From, r.Window.To) * (r.Window.To - r.Window.From).Seconds()
			for event, n := range rec.Events {
				if units > 0 {
					pt.values[event] = n / units
					names[event] = true
				}
			}
			k := identity(p)
			if vms[k] == nil {
				vms[k] = &vm{}
				order = append(order, k)
			}
			vms[k].points = append(vms[k].points, pt)
			if r.Cell.Kind == study.Solo {
				vms[k].solo = append(vms[k].solo, pt)
			}
		}
	}
	out.Names = append([]string{DegradationName}, slices.Sorted(keys(names))...)
	if len(out.Names) < 2 {
		return out, false
	}
	n := len(out.Names)
	square := func(fill float64) Matrix {
		m := make(Matrix, n)
		for i := range m {
			m[i] = slices.Repeat([]float64{fill}, n)
		}
		return m
	}
	for _, m := range []*Matrix{&out.PerVM, &out.PerVMLow, &out.PerVMHigh, &out.Pooled, &out.Spearman, &out.P, &out.Q} {
		*m = square(math.NaN())
	}
	out.VMs = make([][]int, n)
	column := func(points []point, a, b string) (x, y []float64) {
		for _, p := range points {
			va, okA := p.values[a]
			vb, okB := p.values[b]
			if okA && okB {
				x, y = append(x, va), append(y, vb)
			}
		}
		return x, y
	}
	var pooled []point
	for _, k := range order {
		v := vms[k]
		if len(v.solo) == 0 {
			continue
		}
		for _, p := range v.points {
			rel := point{map[string]float64{}}
			for name, value := range p.values {
				var base []float64
				for _, s := range v.solo {
					base = append(base, s.values[name])
				}
				if m := mean(base); m != 0 {
					rel.values[name] = value / m
				}
			}
			pooled = append(pooled, rel)
		}
	}
	out.N = len(pooled)
	var flat []float64
	var at [][2]int
	for i := range n {
		out.VMs[i] = make([]int, n)
		for j := range n {
			if i == j {
				continue
			}
			var rs []float64
			for _, k := range order {
				if r := Pearson(column(vms[k].points, out.Names[i], out.Names[j])); !math.IsNaN(r) && len(vms[k].points) >= 3 {
					rs = append(rs, r)
				}
			}
			if out.VMs[i][j] = len(rs); len(rs) > 0 {
				v := meanInterval(rs, "")
				// A correlation has an end.
				out.PerVM[i][j], out.PerVMLow[i][j], out.PerVMHigh[i][j] = v.Value, max(v.Low, -1), min(v.High, 1)
			}
			x, y := column(pooled, out.Names[i], out.Names[j])
			out.Pooled[i][j], out.Spearman[i][j] = Pearson(x, y), Spearman(x, y)
			if i < j {
				out.P[i][j] = PermutationP(x, y, Pearson, perms, seed)
				flat, at = append(flat, out.P[i][j]), append(at, [2]int{i, j})
			}
		}
	}
	for k, q := range Adjust(flat) {
		i, j := at[k][0], at[k][1]
		out.Q[i][j], out.Q[j][i], out.P[j][i] = q, q, out.P[i][j]
	}
	return out, true
}

func keys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
