package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Task is a task to be placed. Tasks with one name are alike.
type Task struct {
	Name string `json:"name"`
	// Misses are last-level cache misses a second, Load is the share of its CPUs that it
	// keeps busy, 0 to 1; negative: not measured.
	Misses float64 `json:"-"`
	Load   float64 `json:"-"`
}

// Degradation is the ratio by which a task named Victim was slower on a machine with one
// named Neighbour: 0.3 is 30 %. A measured ratio may be below 0.
type Degradation struct {
	Victim, Neighbour string
	Ratio             float64
}

// Basis is what a number rests on.
type Basis string

// The bases, best first. A pair has the worse of its two directions.
const (
	Measured Basis = "measured"
	Misses   Basis = "misses"  // in proportion to the product of both tasks' misses
	Unknown  Basis = "unknown" // taken as the mean of the measured losses
	Alone    Basis = "alone"
)

// Pinning is how two tasks should share a machine of two chips or more.
type Pinning string

// The pinnings are paper 003's (figure 1): each task has a chip of its own, or
// both have one hardware thread of each core.
const (
	PerChip   Pinning = "per-chip"
	PerThread Pinning = "per-thread"
	NotPinned Pinning = ""
	lightLoad         = 0.5
)

// Pair is two tasks that should share a machine.
type Pair struct {
	A string `json:"a"`
	B string `json:"b,omitempty"` // "": A has a machine to itself
	// Loss is what both lose by it, summed, as ratios.
	Loss    float64 `json:"loss"`
	Basis   Basis   `json:"basis"`
	Pinning Pinning `json:"pinning,omitempty"` // "" if a load is not known
}

// Advice is which tasks should share a machine.
type Advice struct {
	Pairs []Pair `json:"pairs"` // ordered by loss, largest first
	// Loss is that of all pairs, Random the mean loss of a random pairing.
	Loss   float64 `json:"loss"`
	Random float64 `json:"random_loss"`
	// Exact: no pairing is better by these numbers. Otherwise no exchange between two pairs is better.
	Exact bool `json:"exact"`
}

// exactUpTo is the number of tasks up to which every pairing is considered, MaxTasks the
// number that may be given.
const (
	exactUpTo = 16
	MaxTasks  = 1000
)

// Advise pairs the tasks for the least total loss. If their number is odd, one stays alone.
func Advise(tasks []Task, measured []Degradation) (Advice, error) {
	if len(tasks) == 0 || len(tasks) > MaxTasks {
		return Advice{}, fmt.Errorf("pair %d tasks: want 1 to %d", len(tasks), MaxTasks)
	}
	m, err := newModel(tasks, measured)
	if err != nil {
		return Advice{}, err
	}
	tasks = slices.Clone(tasks)
	slices.SortStableFunc(tasks, func(a, b Task) int { return cmp.Compare(a.Name, b.Name) })
	n := len(tasks) + len(tasks)%2
	loss := make([][]float64, n)
	for i := range loss {
		loss[i] = make([]float64, n)
		for j := range loss[i] {
			if i != j && max(i, j) < len(tasks) {
				loss[i][j], _ = m.loss(tasks[i], tasks[j])
			}
		}
	}
	a := Advice{Exact: n <= exactUpTo}
	with := localSearch(loss)
	if a.Exact {
		with = exactPairing(loss)
	}
	for i, j := range with {
		for k := range i {
			a.Random += loss[i][k] / float64(n-1)
		}
		switch {
		case j < i:
		case j == len(tasks): // no partner
			a.Pairs = append(a.Pairs, Pair{A: tasks[i].Name, Basis: Alone})
		default:
			p := Pair{A: tasks[i].Name, B: tasks[j].Name, Pinning: pin(tasks[i].Load, tasks[j].Load)}
			p.Loss, p.Basis = m.loss(tasks[i], tasks[j])
			a.Loss += p.Loss
			a.Pairs = append(a.Pairs, p)
		}
	}
	slices.SortStableFunc(a.Pairs, func(p, q Pair) int { return cmp.Compare(q.Loss, p.Loss) })
	return a, nil
}

// pin is how two tasks should be pinned, by their loads: on separate chips if both are busy; on threads
// of the same cores, where each has all the caches, if one of them is busy for less than half (paper
// 003, section IV-C). It is NotPinned if a load is not known.
func pin(a, b float64) Pinning {
	switch light := min(a, b); {
	case !(light >= 0):
		return NotPinned
	case light < lightLoad:
		return PerThread
	}
	return PerChip
}

// exactPairing is the pairing with the least loss, from the best pairings of subsets of the
// tasks, small ones first. with[i] is the partner of i.
func exactPairing(loss [][]float64) (with []int) {
	n := len(loss)
	least, last := make([]float64, 1<<n), make([]int, 1<<n)
	for set := 1; set < 1<<n; set++ {
		i := 0
		for set>>i&1 == 0 {
			i++
		}
		least[set] = math.Inf(1)
		for j := i + 1; j < n; j++ {
			if rest := set &^ (1<<i | 1<<j); set>>j&1 == 1 && least[rest]+loss[i][j] < least[set] {
				least[set], last[set] = least[rest]+loss[i][j], j
			}
		}
	}
	with = make([]int, n)
	for set := 1<<n - 1; set != 0; {
		i := 0
		for set>>i&1 == 0 {
			i++
		}
		j := last[set]
		with[i], with[j] = j, i
		set &^= 1<<i | 1<<j
	}
	return with
}

// localSearch is a pairing that no exchange between two of its pairs improves.
func localSearch(loss [][]float64) (with []int) {
	n := len(loss)
	with = make([]int, n)
	for i := range with {
		with[i] = i ^ 1
	}
	for better := true; better; {
		better = false
		for a := range n {
			for c := range n {
				b, d := with[a], with[c]
				if c == a || c == b {
					continue
				}
				const least = 1e-12 // rounding must not cause endless exchanges
				if loss[a][c]+loss[b][d] < loss[a][b]+loss[c][d]-least {
					with[a], with[c], with[b], with[d] = c, a, d, b
					better = true
				}
			}
		}
	}
	return with
}
