package render

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Value is one number of a study's results. Analysis, Quantity, Cell, Part and At are its
// name: no two values of a study share all five.
type Value struct {
	Analysis string `json:"analysis"` // as in the study file
	Quantity string `json:"quantity"`
	Cell     string `json:"cell"` // levels as factor=value, separated by blanks
	Part     string `json:"part"`
	// At distinguishes several values in one cell: a step, a mapping, a pair of events.
	At    string     `json:"at"`
	Unit  string     `json:"unit"`
	Value stat.Float `json:"value"`
	// Low and High are the interval's bounds, null where there is none.
	Low    stat.Float `json:"low"`
	High   stat.Float `json:"high"`
	Level  float64    `json:"level"`
	Method string     `json:"method"`
	N      int        `json:"n"`
}

// Name is the value's name for people.
func (v *Value) Name() string {
	var w []string
	for _, s := range []string{v.Analysis, v.Quantity, v.Cell, v.Part, v.At} {
		if s != "" {
			w = append(w, s)
		}
	}
	return strings.Join(w, " ")
}

// Values are all numbers of a study's results, as a flat list.
func Values(x *analyse.Results) []Value {
	var all []Value
	cell := func(ls []study.Level) string { return study.LevelText(ls) }
	add := func(analysis, quantity, cell, part, at, unit string, i analyse.Interval) {
		all = append(all, Value{analysis, quantity, cell, part, at, unit,
			stat.Float(i.Value), stat.Float(i.Low), stat.Float(i.High), i.Level, i.Method, i.N})
	}
	if n := x.Noise; n != nil {
		floor, detectable := noBounds(100*n.Floor), noBounds(100*n.Detectable)
		floor.N, detectable.N = n.Pairs, n.Pairs
		add("noise", "floor", "", "", "", "%", floor)
		add("noise", "detectable", "", "", "", "%", detectable)
	}
	if x.Drift != nil {
		add("noise", "drift", "", "", "", "%/h", *x.Drift)
	}
	for _, v := range x.Scores {
		add("score", "value", cell(v.Levels), v.Part, v.Workload, v.Unit, v.Value)
	}
	if x.NetIO != nil {
		netValues(x.NetIO, add)
	}
	if x.Tenants != nil {
		tenantValues(x.Tenants, add)
	}
	for _, d := range x.Degradations {
		c := cell(d.Levels)
		at := d.Workload
		if len(d.Partners) > 0 {
			at += " next to " + strings.Join(d.Partners, ", ")
		}
		add("degradation", "percent", c, d.Part, at, "%", d.Percent)
		add("degradation", "slowdown", c, d.Part, at, "", d.Slowdown)
		add("degradation", "cpu", c, d.Part, at, "%", d.CPU)
		add("degradation", "solo", c, d.Part, at, d.Unit, d.Solo)
		add("degradation", "beside", c, d.Part, at, d.Unit, d.Co)
	}
	for _, m := range x.Mappings {
		add("mapping", "average", m.Set, "", "", "%", m.Interval)
		add("mapping", "worst", m.Set, "", "", "%", m.WorstInterval)
		if a := m.Advised; a != nil {
			for _, one := range []struct {
				at    string
				value float64
			}{{"advised", a.Percent}, {"best", a.Best}, {"worst", a.Worst}, {study.Unpinned, float64(a.Default)}} {
				add("mapping", "of all machines", m.Set, "", one.at, "%", noBounds(one.value))
			}
		}
		for _, p := range m.Parts {
			for _, name := range slices.Sorted(maps.Keys(p.Percent)) {
				v, ok := p.Intervals[name]
				if !ok {
					v = noBounds(p.Percent[name])
				}
				add("mapping", "percent", m.Set, p.Part, name, "%", v)
			}
		}
	}
	if h := x.Headline; h != nil {
		for _, one := range []struct {
			quantity string
			of       *analyse.SetStatistics
		}{{"average", &h.Average}, {"worst", &h.Worst}} {
			add("mapping", one.quantity, "", "", "least of sets", "%", one.of.Least)
			add("mapping", one.quantity, "", "", "largest of sets", "%", one.of.Largest)
			add("mapping", one.quantity, "", "", "mean of sets", "%", one.of.Mean)
			add("mapping", one.quantity, "", "", "geometric mean of sets", "%", one.of.Geometric)
		}
	}
	for _, i := range x.Interferences {
		c := cell(i.Levels)
		add("interference", "metric", c, i.Role, "", "%", i.Interval)
		add("interference", "angle", c, i.Role, "", "degrees", noBounds(i.Angle))
		for h, half := range i.Halves {
			name := []string{"rising", "falling"}[h]
			add("interference", "metric", c, i.Role, name, "%", noBounds(half.Metric))
			add("interference", "p-slope", c, i.Role, name, "", noBounds(half.Line.PSlope))
			add("interference", "p-intercept", c, i.Role, name, "", noBounds(half.Line.PIntercept))
		}
	}
	for _, y := range x.Systems {
		c := cell(y.Levels)
		for k, s := range y.Steps {
			at := strconv.Itoa(k + 1)
			add("throughput", "work", c, "", at, y.Unit, s.Throughput)
			add("throughput", "relative", c, "", at, "%", s.Relative)
			add("energy", "work per Wh", c, "", at, "1/Wh", s.PerWh)
			add("energy", "power", c, "", at, "W", s.Watts)
			add("energy", "relative", c, "", at, "%", s.RelativePerWh)
		}
	}
	for _, e := range x.Correlations {
		c := cell(e.Levels)
		for i, one := range e.Names {
			for j := i + 1; j < len(e.Names); j++ {
				at := one + " " + e.Names[j]
				of := func(quantity string, m, low, high analyse.Matrix, n int, method string) {
					v := noBounds(m.At(i, j))
					v.N = n
					if low != nil && plot.Finite(low.At(i, j), high.At(i, j)) {
						v.Low, v.High, v.Level, v.Method = low.At(i, j), high.At(i, j), 0.95, method
					}
					add("correlation", quantity, c, "", at, "", v)
				}
				of("averaged", e.PerVM, e.PerVMLow, e.PerVMHigh, e.VMs[i][j], "t over machines")
				of("pooled", e.Pooled, e.PooledLow, e.PooledHigh, e.N, e.Method)
				of("rank", e.Spearman, e.SpearmanLow, e.SpearmanHigh, e.N, e.Method)
				of("p", e.P, nil, nil, e.N, "")
				of("q", e.Q, nil, nil, e.N, "")
			}
		}
	}
	for _, m := range x.Migrations {
		c := cell(m.Levels)
		add("migration", "logical", c, m.Part, "", "count", noBounds(float64(m.Logical)))
		add("migration", "physical", c, m.Part, "", "count", noBounds(float64(m.Physical)))
		add("migration", "per second", c, m.Part, "", "1/s", m.PerSecond)
		add("migration", "logical in a minute", c, m.Part, "", "count", times(60, m.PerSecond))
		add("migration", "physical in a minute", c, m.Part, "", "count", times(60, m.PhysicalPerSecond))
		add("migration", "on place", c, m.Part, "", "share", noBounds(m.OnPlace))
		add("migration", "doubled", c, m.Part, "", "share", noBounds(m.Doubled))
	}
	for _, d := range x.Doses {
		c := besides(cell(d.Levels), d.State)
		add("dose-response", "per neighbour", c, d.Part, "", "%", d.PerNeighbour)
		for k, p := range d.Points {
			at := strconv.Itoa(p.Neighbours)
			add("dose-response", "value", c, d.Part, at, d.Unit, p.Value)
			if k > 0 {
				add("dose-response", "longer", c, d.Part, at, "%", p.Longer)
				add("dose-response", "step", c, d.Part, at, "%", p.Step)
			}
		}
		add("dose-response", "full", c, d.Part, "", "%", d.Full)
		add("dose-response", "first half", c, d.Part, "", "%", d.First)
		add("dose-response", "second half", c, d.Part, "", "%", d.Second)
		if k := d.Knee; k != nil {
			add("dose-response", "knee", c, d.Part, "", "%", k.Step)
			add("dose-response", "knee after", c, d.Part, "", "threads", noBounds(float64(k.Before)))
		}
		if k := d.Cores; k != nil {
			add("dose-response", "cores at least", c, d.Part, "", "cores", noBounds(float64(k.Least)))
			if k.Most > 0 {
				add("dose-response", "cores at most", c, d.Part, "", "cores", noBounds(float64(k.Most)))
			}
		}
	}
	for _, g := range x.DoseGaps {
		c, at := cell(g.Levels), g.Of+" over "+g.Over
		add("dose-response", "first gap", c, g.Part, at, "%", g.First)
		add("dose-response", "from itself alone", c, g.Part, at, "%", g.OverOwnLowest)
		add("dose-response", "from the other's lone threads", c, g.Part, at, "%", g.OverBaseLowest)
		add("dose-response", "gap at full", c, g.Part, at, "%", g.AtFull)
	}
	for _, d := range x.DoseCosts {
		c := besides(cell(d.Levels), d.State)
		add("dose-response", "work for a price, lone", c, d.Part, "", d.Unit, d.Lone)
		add("dose-response", "work for a price, full", c, d.Part, "", d.Unit, d.Full)
		add("dose-response", "work for a price over the base's", c, d.Part, "", "%", d.OverBase)
	}
	for _, v := range x.Variations {
		c := cell(v.Levels)
		add("variation", "mean", c, v.Part, "", v.Unit, v.Mean)
		add("variation", "between", c, v.Part, "", "%", v.Between)
		add("variation", "within", c, v.Part, "", "%", noBounds(float64(v.Within)))
		add("variation", "span", c, v.Part, "", "%", noBounds(float64(v.Span)))
		add("variation", "p", c, v.Part, "", "", noBounds(float64(v.P)))
		for _, i := range v.Instances {
			add("variation", "value", c, v.Part, i.Name, v.Unit, i.Value)
		}
	}
	for _, d := range x.DoseContrasts {
		c := strings.TrimSpace(cell(d.Levels) + " " + d.Of + " over " + d.Over)
		for _, p := range d.Points {
			add("dose-response", "longer at equal "+d.By, c, d.Part, strconv.Itoa(p.At), "%", p.Longer)
		}
	}
	for _, v := range x.Validities {
		of := func(quantity, unit string, i analyse.Interval) {
			add("signal-validity", quantity, "", v.Part, v.Signal+" "+v.Workload, unit, i)
		}
		of("correlation", "", v.Pearson)
		of("rank", "", v.Spearman)
		p := noBounds(float64(v.P))
		p.N = v.N
		of("p", "", p)
		of("tail", "", v.Tail)
		of("drift", "%/h", v.Drift)
		of("drift of the application", "%/h", v.AppDrift)
	}
	return all
}

// besides is a cell's text with the state of the neighbours, if they have one.
func besides(cell, state string) string {
	if state != "" {
		state = "state=" + state
	}
	return strings.TrimSpace(cell + " " + state)
}

// times is a multiple of an estimate.
func times(factor float64, i analyse.Interval) analyse.Interval {
	i.Value, i.Low, i.High = factor*i.Value, factor*i.Low, factor*i.High
	return i
}

// CSV writes every number of the results, one row each, with empty fields where a value
// is missing. The first lines are comments, after #, with the stamps that the numbers
// must not be mixed with.
func CSV(w io.Writer, r *Report) error {
	b := bufio.NewWriter(w)
	for _, s := range r.stamps() {
		fmt.Fprintf(b, "# %s\n", printable.Text(strings.ReplaceAll(s, "\n", " ")))
	}
	c := csv.NewWriter(b)
	// The buffered writer keeps its errors until Flush.
	_ = c.Write([]string{"analysis", "quantity", "cell", "part", "at", "unit", "value", "low", "high", "level", "method", "n"})
	for _, v := range Values(&r.ordered().Results) {
		_ = c.Write([]string{v.Analysis, printable.Cell(v.Quantity), printable.Cell(v.Cell), printable.Cell(v.Part), printable.Cell(v.At), v.Unit, exactly(v.Value), exactly(v.Low), exactly(v.High), exactly(stat.Float(v.Level)), v.Method, strconv.Itoa(v.N)})
	}
	c.Flush()
	if err := cmp.Or(c.Error(), b.Flush()); err != nil {
		return fmt.Errorf("render CSV: %w", err)
	}
	return nil
}

// exactly formats a number so that it reads back unchanged, "" for none.
func exactly(n stat.Float) string {
	if number(float64(n)) == unknown {
		return ""
	}
	return strconv.FormatFloat(float64(n), 'g', -1, 64)
}

// JSONL writes the same as JSON lines: first an object with the study and its stamps,
// then one Value a line.
func JSONL(w io.Writer, r *Report) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	err := e.Encode(struct {
		Study  string   `json:"study"`
		Hash   string   `json:"hash"`
		Stamps []string `json:"stamps"`
	}{r.Study.Name, r.Lock.Hash, r.stamps()})
	for _, v := range Values(&r.ordered().Results) {
		if err == nil {
			err = e.Encode(v)
		}
	}
	if err == nil {
		err = b.Flush()
	}
	if err != nil {
		return fmt.Errorf("render JSON lines: %w", err)
	}
	return nil
}
