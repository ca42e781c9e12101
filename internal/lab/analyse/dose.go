package analyse

import (
	"math"
	"slices"
	"strconv"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Dose is how much longer a measured part takes as neighbours, or threads, are added a
// few at a time: paper 002, chapter 5.
type Dose struct {
	Levels []study.Level `json:"levels"` // without the factors of the dose
	Part   string        `json:"part"`
	State  string        `json:"state"` // of the neighbours
	Unit   string        `json:"unit"`  // of the points' values
	Points []DosePoint   `json:"points"`
	// PerNeighbour is the slope, in percent of its value without neighbours.
	PerNeighbour Interval `json:"per_neighbour"`
	// Full is the time at the highest dose over that at the lowest, less 1, in percent.
	// First is the same up to half of the maximum number of threads, Second from the
	// first point beyond half; between the two is the step at n/2 + 1 (paper 002,
	// 5.2.2).
	Full   Interval `json:"full_percent"`
	First  Interval `json:"first_half_percent"`
	Second Interval `json:"second_half_percent"`
	// Knee is the largest step whose interval is above 0; nil if there is none.
	Knee *Knee `json:"knee,omitempty"`
	// Cores says how many cores are behind the CPUs; nil if that cannot be determined.
	Cores *Cores `json:"cores,omitempty"`
}

// DosePoint is the measurement with one number of neighbours.
type DosePoint struct {
	Neighbours int `json:"neighbours"`
	// Threads are the busy threads in all parts of the run.
	Threads int      `json:"threads"`
	Value   Interval `json:"value"` // throughput, or time
	// Longer is how much longer a unit of work takes than at the lowest dose, Step than
	// at the previous point, in percent. Both are NaN at the first point.
	Longer Interval `json:"longer_percent"`
	Step   Interval `json:"step_percent"`
}

// Knee is the step at the first thread that has to share a core. With n logical CPUs on
// n/2 cores that is thread n/2 + 1 (paper 002, 5.2.2).
type Knee struct {
	// The step is from Before busy threads to After.
	Before int      `json:"before"`
	After  int      `json:"after"`
	Step   Interval `json:"step_percent"`
}

// Cores returns the bounds of the number of cores: at least Before, fewer than After.
func (k *Knee) Cores() (least, most int) { return k.Before, k.After - 1 }

// DoseContrast compares two doses at equal numbers: busy neighbours with idle ones, or
// one environment with another (a virtual machine with metal).
type DoseContrast struct {
	Levels []study.Level   `json:"levels"` // that both have
	Part   string          `json:"part"`
	Of     string          `json:"of"`   // the level compared, e.g. busy, vm
	Over   string          `json:"over"` // the level it is compared with, e.g. idle, metal
	By     string          `json:"by"`   // equal "neighbours" or "threads"
	Points []ContrastPoint `json:"points"`
}

// ContrastPoint is how much longer a unit of work takes, in percent.
type ContrastPoint struct {
	At     int      `json:"at"` // neighbours, or threads
	Longer Interval `json:"longer_percent"`
}

// DoseOptions name the factors of a dose.
type DoseOptions struct {
	Count string // the factor that counts neighbours, or threads
	State string // the factor that says whether neighbours are busy or idle
	VE    string // the environment
	Base  string // level of VE that the others are compared with, e.g. metal
	Seed  uint64
	// Price is the price of an hour of a CPU where a part runs, zero if unknown; nil if
	// no price is known.
	Price func(*study.Part) study.Price
	// Margin is the largest difference, in percent, of two values that are called
	// equal: the noise floor.
	Margin float64
}

// doseRuns are the runs of one measured part along a dose.
type doseRuns struct {
	dose     Dose
	ve       string
	emulated bool // its CPUs were emulated
	metric   *study.Metric
	values   map[int]Levels // by neighbours
	threads  map[int]int
	node     *study.Part // the measured part, from its first run
	own      map[int]int // the measured part's threads
	alone    bool        // there is no other part at any dose
	remote   bool        // some part is on another host than the measured one
	cpus     int         // the CPUs that it may use according to the records; 0: unknown
}

// Emulated is the stamp of runs whose guests' CPUs are emulated.
const Emulated = "accel=tcg"

// DoseResponse groups the runs by the factor that counts neighbours and, where they
// exist, by the factors for their state and for the environment, and compares the
// groups.
func DoseResponse(runs []result.Run, o DoseOptions) ([]Dose, []DoseContrast) {
	all := doses(runs, o)
	var out []Dose
	for _, d := range all {
		d.fill(o.Seed)
		out = append(out, d.dose)
	}
	var contrasts []DoseContrast
	for _, of := range all {
		for _, over := range all {
			c := DoseContrast{Levels: of.dose.Levels, Part: of.dose.Part}
			switch {
			case of.alike(over) && of.ve == over.ve && of.dose.State == "busy" && over.dose.State == "idle" && slices.Equal(of.dose.Levels, over.dose.Levels):
				c.Of, c.Over, c.By = of.dose.State, over.dose.State, "neighbours"
				for _, n := range sortedKeys(of.values) {
					if b := over.values[n]; b != nil {
						c.Points = append(c.Points, ContrastPoint{n, of.longer(of.values[n], b, o.Seed)})
					}
				}
			case of.comparableTo(over, o):
				c.Levels, c.Of, c.Over, c.By = without(of.dose.Levels, o.VE), of.ve, over.ve, "threads"
				for _, n := range sortedKeys(of.values) {
					if b := over.with(of.threads[n]); b != nil {
						c.Points = append(c.Points, ContrastPoint{of.threads[n], of.longer(of.values[n], b, o.Seed)})
					}
				}
			}
			if len(c.Points) > 0 {
				contrasts = append(contrasts, c)
			}
		}
	}
	return out, contrasts
}

// alike reports whether the figures of two doses are of one kind. An emulated CPU is
// not compared with a real one.
func (d *doseRuns) alike(e *doseRuns) bool {
	return d.dose.Part == e.dose.Part && d.metric.Better == e.metric.Better && d.emulated == e.emulated
}

// comparableTo reports whether d is compared with base: the same dose in the base
// environment.
func (d *doseRuns) comparableTo(base *doseRuns, o DoseOptions) bool {
	return d.alike(base) && d.ve != base.ve && base.ve == o.Base && d.dose.State == base.dose.State && d.dose.State != "idle" &&
		slices.Equal(without(d.dose.Levels, o.VE), without(base.dose.Levels, o.VE))
}

func without(ls []study.Level, factor string) []study.Level {
	return slices.DeleteFunc(slices.Clone(ls), func(l study.Level) bool { return l.Factor == factor })
}

// doses collects the runs, in the order of the first appearance of parts and cells.
func doses(runs []result.Run, o DoseOptions) []*doseRuns {
	type key struct{ rest, part, state string }
	at := map[key]*doseRuns{}
	var order []*doseRuns
	for _, r := range valid(runs) {
		n, err := strconv.Atoi(r.Cell.Level(o.Count))
		if r.Cell.Kind != study.Main || err != nil {
			continue
		}
		rest := without(without(r.Cell.Levels, o.Count), o.State)
		name := study.LevelText(rest)
		for p, rec := range measured(r) {
			v := figure(r, rec, &p.Workload.Metric)
			if len(v) == 0 {
				continue
			}
			k := key{name, p.Name(), r.Cell.Level(o.State)}
			d := at[k]
			if d == nil {
				d = &doseRuns{dose: Dose{Levels: rest, Part: k.part, State: k.state, Unit: p.FigureUnit()},
					ve: r.Cell.Level(o.VE), emulated: p.Environment.Driver == study.QEMU && slices.Contains(r.Stamp, Emulated), metric: &p.Workload.Metric,
					values: map[int]Levels{}, threads: map[int]int{}, node: p, own: map[int]int{}, alone: true}
				at[k] = d
				order = append(order, d)
			}
			d.values[n], d.threads[n], d.own[n] = append(d.values[n], v), busyThreads(&r.Cell), p.Threads()
			d.alone = d.alone && len(r.Cell.Parts) == 1
			d.remote = d.remote || slices.ContainsFunc(r.Cell.Parts, func(q study.Part) bool { return q.Host != p.Host })
			d.cpus = max(d.cpus, usable(r.Parts))
		}
	}
	// Without neighbours their state does not matter, and the design may have left out
	// such a cell.
	for _, d := range order {
		for _, other := range order {
			if d != other && d.values[0] == nil && other.values[0] != nil && d.dose.Part == other.dose.Part && slices.Equal(d.dose.Levels, other.dose.Levels) {
				d.values[0], d.threads[0], d.own[0] = other.values[0], other.threads[0], other.own[0]
			}
		}
	}
	return order
}

// busyThreads is the number of threads in all parts that are not idle.
func busyThreads(c *study.Cell) int {
	n := 0
	for _, p := range c.Parts {
		if !p.Idle {
			n += p.Threads()
		}
	}
	return n
}

// longer is how much longer a unit of work takes in a than in b, in percent.
func (d *doseRuns) longer(a, b Levels, seed uint64) Interval {
	if d.metric.Better != "lower" {
		a, b = b, a // for rates
	}
	return percent(RatioOfMeans(a, b, seed), "lower")
}

// fill computes the dose from its runs.
func (d *doseRuns) fill(seed uint64) {
	out, ns := &d.dose, sortedKeys(d.values)
	none := Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN(), Level: level, Method: "none"}
	out.Full, out.First, out.Second = none, none, none
	base := stat.Mean(d.values[ns[0]].means())
	var x, y []float64
	for i, n := range ns {
		p := DosePoint{n, d.threads[n], d.values[n].mean(seed), none, none}
		if i > 0 {
			p.Longer = d.longer(d.values[n], d.values[ns[0]], seed)
			p.Step = d.longer(d.values[n], d.values[ns[i-1]], seed)
			before := out.Points[i-1].Threads
			if k := out.Knee; p.Threads > before && p.Step.Low > 0 && (k == nil || p.Step.Value > k.Step.Value) {
				out.Knee = &Knee{before, p.Threads, p.Step}
			}
		}
		out.Points = append(out.Points, p)
		for _, v := range d.values[n].means() {
			x, y = append(x, float64(n)), append(y, 100*v/base)
		}
	}
	if l, ok := Fit(x, y); ok {
		h := tQuantile(float64(l.N-2)) * math.Sqrt(l.VarSlope)
		out.PerNeighbour = Interval{l.Slope, l.Slope - h, l.Slope + h, level, "least squares over runs", l.N}
	} else {
		out.PerNeighbour = none
	}
	out.Cores = d.cores()
	last := len(ns) - 1
	if last < 1 {
		return
	}
	out.Full = out.Points[last].Longer
	// The halves are of threads. If no threads are added (idle neighbours) there are no
	// halves.
	most := out.Points[last].Threads
	beyond := slices.IndexFunc(out.Points, func(p DosePoint) bool { return 2*p.Threads > most })
	if most == out.Points[0].Threads || beyond < 1 {
		return
	}
	if beyond > 1 {
		out.First = d.longer(d.values[ns[beyond-1]], d.values[ns[0]], seed)
	}
	if beyond < last {
		out.Second = d.longer(d.values[ns[last]], d.values[ns[beyond]], seed)
	}
}
