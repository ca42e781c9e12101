package analyse

import (
	"math"
	"slices"
	"strconv"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Moves are the migrations of a part's threads in one cell: paper 000, section
// 4 (its figures 1 and 2 have 1,066 logical and 219 physical ones in a minute).
type Moves struct {
	Levels   []study.Level `json:"levels"`
	Part     string        `json:"part"`
	Method   string        `json:"method"`
	Seconds  float64       `json:"seconds"` // of all windows
	Logical  int           `json:"logical"`
	Physical int           `json:"physical"`
	// PerSecond counts logical ones, over runs.
	PerSecond Interval `json:"per_second"`
	OnPlace   float64  `json:"on_place"` // least share of run time on the CPUs it was pinned to
	Doubled   float64  `json:"doubled"`  // largest share of time with two on a core while another idled
	Lost      uint64   `json:"lost"`     // trace records
}

// Migrations sums up the placement audits of each cell.
func Migrations(runs []result.Run) []Moves {
	var out []Moves
	for _, group := range byCell(valid(runs), study.Main) {
		for i := range group[0].Parts {
			m := Moves{Levels: group[0].Cell.Levels, Part: group[0].Parts[i].Name, OnPlace: 1}
			var rates []float64
			for _, r := range group {
				p := partOf(r, m.Part)
				if p == nil || p.Audit == nil {
					continue
				}
				logical, seconds := 0, (r.Window.To - r.Window.From).Seconds()
				for _, t := range p.Audit.Migrations {
					logical += t.Logical
					m.Physical += t.Physical
				}
				m.Method, m.Logical, m.Seconds = p.Audit.Method, m.Logical+logical, m.Seconds+seconds
				m.OnPlace, m.Doubled, m.Lost = min(m.OnPlace, p.Audit.OnPlace), max(m.Doubled, p.Audit.Doubled), m.Lost+p.Audit.Lost
				rates = append(rates, float64(logical)/seconds)
			}
			if len(rates) > 0 {
				m.PerSecond = meanInterval(rates, "t over runs")
				out = append(out, m)
			}
		}
	}
	return out
}

// Dose is how much a measured part loses per neighbour: the slowdown against
// their number, busy and idle.
type Dose struct {
	Levels []study.Level `json:"levels"` // without the factors of the dose
	Part   string        `json:"part"`
	State  string        `json:"state"`
	Points []DosePoint   `json:"points"`
	// PerNeighbour is the slope of the percentage of what it does beside none.
	PerNeighbour Interval `json:"per_neighbour"`
}

// DosePoint is the throughput, or time, beside so many neighbours.
type DosePoint struct {
	Neighbours int      `json:"neighbours"`
	Value      Interval `json:"value"`
}

// DoseResponse groups the runs by the factor that counts neighbours and, if
// there is one, the one that says whether they are busy.
func DoseResponse(runs []result.Run, count, state string) []Dose {
	var out []Dose
	type at struct{ rest, part, state string }
	values := map[at]map[int][]float64{}
	levels := map[at][]study.Level{}
	var order []at
	for _, r := range valid(runs) {
		n, err := strconv.Atoi(r.Cell.Level(count))
		if r.Cell.Kind != study.Main || err != nil {
			continue
		}
		var rest []study.Level
		name := ""
		for _, l := range r.Cell.Levels {
			if l.Factor != count && l.Factor != state {
				rest, name = append(rest, l), name+l.Factor+"="+l.Value+" "
			}
		}
		for i := range r.Cell.Parts {
			p := &r.Cell.Parts[i]
			rec := partOf(r, p.Name())
			if rec == nil || !p.Measure {
				continue
			}
			v := figure(r, rec, &p.Workload.Metric)
			if len(v) == 0 {
				continue
			}
			k := at{name, p.Name(), r.Cell.Level(state)}
			if values[k] == nil {
				values[k] = map[int][]float64{}
				levels[k] = rest
				order = append(order, k)
			}
			values[k][n] = append(values[k][n], mean(v))
		}
	}
	for _, k := range order {
		d := Dose{Levels: levels[k], Part: k.part, State: k.state}
		var ns []int
		for n := range values[k] {
			ns = append(ns, n)
		}
		slices.Sort(ns)
		base := mean(values[k][ns[0]])
		var x, y []float64
		for _, n := range ns {
			d.Points = append(d.Points, DosePoint{n, meanInterval(values[k][n], "t over runs")})
			for _, v := range values[k][n] {
				x, y = append(x, float64(n)), append(y, 100*v/base)
			}
		}
		if l, ok := Fit(x, y); ok {
			h := tQuantile(float64(l.N-2)) * math.Sqrt(l.VarSlope)
			d.PerNeighbour = Interval{l.Slope, l.Slope - h, l.Slope + h, level, "least squares over runs", l.N}
		}
		out = append(out, d)
	}
	return out
}

// Validity is how well a signal tells what the application itself says of how
// it does, over runs.
type Validity struct {
	Signal   string `json:"signal"`
	Part     string `json:"part"`
	Workload string `json:"workload"`
	Pearson  Num    `json:"pearson"` // with the time of a unit of work
	Spearman Num    `json:"spearman"`
	P        Num    `json:"p"`
	N        int    `json:"n"`
}

// Validities correlates the signals that were counted (events named
// "signal.NAME") with the measured parts' time per unit of work.
func Validities(runs []result.Run, seed uint64) []Validity {
	type k struct{ signal, part, workload string }
	xs, ys := map[k][]float64{}, map[k][]float64{}
	var order []k
	for _, r := range valid(runs) {
		for i := range r.Cell.Parts {
			p := &r.Cell.Parts[i]
			rec := partOf(r, p.Name())
			if rec == nil || !p.Measure {
				continue
			}
			v := figure(r, rec, &p.Workload.Metric)
			if len(v) == 0 {
				continue
			}
			t := mean(v)
			if p.Workload.Metric.Better != "lower" {
				t = 1 / t
			}
			for name, cost := range rec.Events {
				if len(name) < 8 || name[:7] != "signal." {
					continue
				}
				key := k{name[7:], p.Role, p.Workload.Name}
				if xs[key] == nil {
					order = append(order, key)
				}
				xs[key], ys[key] = append(xs[key], cost), append(ys[key], t)
			}
		}
	}
	slices.SortFunc(order, func(a, b k) int {
		return slices.Compare([]string{a.signal, a.part, a.workload}, []string{b.signal, b.part, b.workload})
	})
	var out []Validity
	for _, key := range order {
		x, y := xs[key], ys[key]
		out = append(out, Validity{key.signal, key.part, key.workload, Num(Pearson(x, y)), Num(Spearman(x, y)), Num(PermutationP(x, y, Pearson, perms, seed)), len(x)})
	}
	return out
}
