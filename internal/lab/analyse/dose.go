package analyse

import (
	"math"
	"slices"
	"strconv"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Dose is how much longer a measured part takes as neighbours, or threads, are
// added a few at a time: paper 002, chapter 5.
type Dose struct {
	Levels []study.Level `json:"levels"` // without the factors of the dose
	Part   string        `json:"part"`
	State  string        `json:"state"` // of the neighbours
	Unit   string        `json:"unit"`  // of the points' values
	Points []DosePoint   `json:"points"`
	// PerNeighbour is the slope of the percentage of what it does beside none.
	PerNeighbour Interval `json:"per_neighbour"`
	// Full is the time at the highest dose over that at the lowest, less 1, in
	// percent. First is the same up to half of the threads that there are at
	// most, Second from the first point beyond it: what is between them is the
	// step at n/2 + 1 (paper 002, 5.2.2).
	Full   Interval `json:"full_percent"`
	First  Interval `json:"first_half_percent"`
	Second Interval `json:"second_half_percent"`
	// Knee is the largest step, if there is one that is more than chance.
	Knee *Knee `json:"knee,omitempty"`
	// Cores is what it says of the cores behind the CPUs; nil where that cannot be
	// told.
	Cores *Cores `json:"cores,omitempty"`
}

// DosePoint is what it does beside so many neighbours.
type DosePoint struct {
	Neighbours int `json:"neighbours"`
	// Threads are those that are busy in all parts of the run.
	Threads int      `json:"threads"`
	Value   Interval `json:"value"` // throughput, or time
	// Longer is by how much longer a unit of work takes than at the lowest
	// dose, Step than at the point before, in percent; both NaN at the first.
	Longer Interval `json:"longer_percent"`
	Step   Interval `json:"step_percent"`
}

// Knee is where it grows worse at once: the first thread that has to share a
// core. With n logical CPUs on n/2 cores it is n/2 + 1 (paper 002, 5.2.2).
type Knee struct {
	// The step is from Before busy threads to After.
	Before int      `json:"before"`
	After  int      `json:"after"`
	Step   Interval `json:"step_percent"`
}

// Cores says how many cores the knee speaks of: at least Before, fewer than
// After.
func (k *Knee) Cores() (least, most int) { return k.Before, k.After - 1 }

// DoseContrast compares two doses at equal numbers: busy neighbours with idle
// ones, or one environment with another (a virtual machine with metal).
type DoseContrast struct {
	Levels []study.Level   `json:"levels"` // that both have
	Part   string          `json:"part"`
	Of     string          `json:"of"`   // the level compared, e.g. busy, vm
	Over   string          `json:"over"` // with which, e.g. idle, metal
	By     string          `json:"by"`   // equal "neighbours" or "threads"
	Points []ContrastPoint `json:"points"`
}

// ContrastPoint is by how much longer a unit of work takes, in percent.
type ContrastPoint struct {
	At     int      `json:"at"` // neighbours, or threads
	Longer Interval `json:"longer_percent"`
}

// DoseOptions name the factors of a dose.
type DoseOptions struct {
	Count string // counts neighbours, or threads
	State string // says whether neighbours are busy or idle
	VE    string // the environment
	Base  string // level of VE that the others are compared with, e.g. metal
	Seed  uint64
	// Price is what an hour of a CPU costs where a part runs, zero where that is
	// not known; nil: nobody knows any.
	Price func(*study.Part) study.Price
	// Margin is the percentage by which two things may differ that are called
	// equal: the noise floor.
	Margin float64
}

// doseRuns are the runs of one measured part along a dose.
type doseRuns struct {
	dose     Dose
	ve       string
	emulated bool // its CPUs were
	metric   *study.Metric
	values   map[int]Levels // by neighbours
	threads  map[int]int
	node     *study.Part // the measured one, as it is at the first dose that was met
	own      map[int]int // its threads
	alone    bool        // there is no other part at any dose
	apart    bool        // some part is on another host than it
	cpus     int         // that it may use, by the records; 0: not known
}

// Emulated is the stamp of runs whose guests' CPUs are emulated.
const Emulated = "accel=tcg"

// DoseResponse groups the runs by the factor that counts neighbours and, if
// there are such, those that say whether they are busy and where everything
// runs, and compares.
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
			case of.against(over, o):
				c.Levels, c.Of, c.Over, c.By = without(of.dose.Levels, o.VE), of.ve, over.ve, "threads"
				for _, n := range sortedKeys(of.values) {
					for _, m := range sortedKeys(over.values) {
						if of.threads[n] == over.threads[m] {
							c.Points = append(c.Points, ContrastPoint{of.threads[n], of.longer(of.values[n], over.values[m], o.Seed)})
							break
						}
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

// alike reports whether the figures of two are of one kind. An emulated CPU
// is compared with no real one.
func (d *doseRuns) alike(e *doseRuns) bool {
	return d.dose.Part == e.dose.Part && d.metric.Better == e.metric.Better && d.emulated == e.emulated
}

// against reports whether base is what d is held against: the same in the other
// environment.
func (d *doseRuns) against(base *doseRuns, o DoseOptions) bool {
	return d.alike(base) && d.ve != base.ve && base.ve == o.Base && d.dose.State == base.dose.State && d.dose.State != "idle" &&
		slices.Equal(without(d.dose.Levels, o.VE), without(base.dose.Levels, o.VE))
}

func without(ls []study.Level, factor string) []study.Level {
	return slices.DeleteFunc(slices.Clone(ls), func(l study.Level) bool { return l.Factor == factor })
}

// doses collects the runs, in the order in which parts and cells are first met.
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
		name := ""
		for _, l := range rest {
			name += l.Factor + "=" + l.Value + " "
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
			k := key{name, p.Name(), r.Cell.Level(o.State)}
			d := at[k]
			if d == nil {
				d = &doseRuns{dose: Dose{Levels: rest, Part: k.part, State: k.state, Unit: p.Workload.Metric.Unit},
					ve: r.Cell.Level(o.VE), emulated: p.Environment.Driver == study.QEMU && slices.Contains(r.Stamp, Emulated), metric: &p.Workload.Metric,
					values: map[int]Levels{}, threads: map[int]int{}, node: p, own: map[int]int{}, alone: true}
				at[k] = d
				order = append(order, d)
			}
			d.values[n], d.threads[n], d.own[n] = append(d.values[n], v), busyThreads(&r.Cell), p.Threads()
			d.alone = d.alone && len(r.Cell.Parts) == 1
			d.apart = d.apart || slices.ContainsFunc(r.Cell.Parts, func(q study.Part) bool { return q.Host != p.Host })
			d.cpus = max(d.cpus, usable(r.Parts))
		}
	}
	// Beside none it is all one whether those that are not there would be idle:
	// such a cell may have been left out of the design.
	for _, d := range order {
		for _, other := range order {
			if d != other && d.values[0] == nil && other.values[0] != nil && d.dose.Part == other.dose.Part && slices.Equal(d.dose.Levels, other.dose.Levels) {
				d.values[0], d.threads[0], d.own[0] = other.values[0], other.threads[0], other.own[0]
			}
		}
	}
	return order
}

// busyThreads are those of all parts in which something runs.
func busyThreads(c *study.Cell) int {
	n := 0
	for i := range c.Parts {
		if p := &c.Parts[i]; !p.Idle {
			n += p.Threads()
		}
	}
	return n
}

// longer is by how much longer a unit of work takes in a than in b, in percent.
func (d *doseRuns) longer(a, b Levels, seed uint64) Interval {
	if d.metric.Better != "lower" {
		a, b = b, a // of rates
	}
	return percent(RatioOfMeans(a, b, seed), "lower")
}

// fill computes the dose from its runs.
func (d *doseRuns) fill(seed uint64) {
	out, ns := &d.dose, sortedKeys(d.values)
	none := Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN(), Level: level, Method: "none"}
	out.Full, out.First, out.Second = none, none, none
	base := mean(d.values[ns[0]].means())
	var x, y []float64
	for i, n := range ns {
		p := DosePoint{n, d.threads[n], meanInterval(d.values[n].means(), "t over runs"), none, none}
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
	// The halves are of threads; where none are added (idle neighbours) there
	// are none.
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
