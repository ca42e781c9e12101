package render

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/plot"
)

// Value is one number of a study's results. Analysis, Quantity, Cell, Part and
// At are its name: no two values of a study share all five.
type Value struct {
	Analysis string `json:"analysis"` // as in the study file
	Quantity string `json:"quantity"`
	Cell     string `json:"cell"` // levels as factor=value, with blanks between
	Part     string `json:"part"`
	// At is what the value is of, where a cell has several: a step, a mapping,
	// a pair of events.
	At    string      `json:"at"`
	Unit  string      `json:"unit"`
	Value analyse.Num `json:"value"`
	// Low and High are the interval's bounds, null where there is none.
	Low    analyse.Num `json:"low"`
	High   analyse.Num `json:"high"`
	Level  float64     `json:"level"`
	Method string      `json:"method"`
	N      int         `json:"n"`
}

// Name is a value's, for people.
func (v *Value) Name() string {
	var w []string
	for _, s := range []string{v.Analysis, v.Quantity, v.Cell, v.Part, v.At} {
		if s != "" {
			w = append(w, s)
		}
	}
	return strings.Join(w, " ")
}

// Values are all numbers of a study's results, one after another.
func Values(x *analyse.Results) []Value {
	var all []Value
	cell := func(ls []study.Level) string {
		if len(ls) == 0 {
			return ""
		}
		return words(ls)
	}
	add := func(analysis, quantity, cell, part, at, unit string, i analyse.Interval) {
		all = append(all, Value{analysis, quantity, cell, part, at, unit,
			analyse.Num(i.Value), analyse.Num(i.Low), analyse.Num(i.High), i.Level, i.Method, i.N})
	}
	if n := x.Noise; n != nil {
		floor, detectable := bare(100*n.Floor), bare(100*n.Detectable)
		floor.N, detectable.N = n.Pairs, n.Pairs
		add("noise", "floor", "", "", "", "%", floor)
		add("noise", "detectable", "", "", "", "%", detectable)
	}
	for _, d := range x.Degradations {
		c := cell(d.Levels)
		add("degradation", "percent", c, d.Part, d.Workload, "%", d.Percent)
		add("degradation", "slowdown", c, d.Part, d.Workload, "", d.Slowdown)
		add("degradation", "cpu", c, d.Part, d.Workload, "%", d.CPU)
		add("degradation", "solo", c, d.Part, d.Workload, d.Unit, d.Solo)
		add("degradation", "beside", c, d.Part, d.Workload, d.Unit, d.Co)
	}
	for _, m := range x.Mappings {
		add("mapping", "average", m.Set, "", "", "%", m.Interval)
		add("mapping", "worst", m.Set, "", "", "%", bare(m.Worst))
		if a := m.Advised; a != nil {
			for _, one := range []struct {
				at    string
				value float64
			}{{"advised", a.Percent}, {"best", a.Best}, {"worst", a.Worst}, {study.Unpinned, float64(a.Default)}} {
				add("mapping", "of all machines", m.Set, "", one.at, "%", bare(one.value))
			}
		}
		for _, p := range m.Parts {
			for _, name := range slices.Sorted(maps.Keys(p.Percent)) {
				v, ok := p.Intervals[name]
				if !ok {
					v = bare(p.Percent[name])
				}
				add("mapping", "percent", m.Set, p.Part, name, "%", v)
			}
		}
	}
	for _, i := range x.Interferences {
		c := cell(i.Levels)
		add("interference", "metric", c, i.Role, "", "%", i.Interval)
		add("interference", "angle", c, i.Role, "", "degrees", bare(i.Angle))
		for h, half := range i.Halves {
			name := []string{"rising", "falling"}[h]
			add("interference", "metric", c, i.Role, name, "%", bare(half.Metric))
			add("interference", "p-slope", c, i.Role, name, "", bare(half.Line.PSlope))
			add("interference", "p-intercept", c, i.Role, name, "", bare(half.Line.PIntercept))
		}
	}
	for _, y := range x.Systems {
		c := cell(y.Levels)
		for k, s := range y.Steps {
			at := strconv.Itoa(k + 1)
			add("throughput", "work", c, "", at, y.Unit, s.Throughput)
			add("throughput", "relative", c, "", at, "%", s.Relative)
			add("energy", "work per Wh", c, "", at, "1/Wh", s.PerWh)
			add("energy", "relative", c, "", at, "%", s.RelativePerWh)
		}
	}
	if e := x.Correlations; e != nil {
		for i, one := range e.Names {
			for j := i + 1; j < len(e.Names); j++ {
				at := one + " " + e.Names[j]
				averaged := bare(e.PerVM[i][j])
				averaged.N = e.VMs[i][j]
				if low, high := e.PerVMLow, e.PerVMHigh; low != nil && plot.Finite(low[i][j], high[i][j]) {
					averaged.Low, averaged.High, averaged.Level, averaged.Method = low[i][j], high[i][j], 0.95, "t over machines"
				}
				add("correlation", "averaged", "", "", at, "", averaged)
				of := func(quantity string, m analyse.Matrix, n int) {
					v := bare(m[i][j])
					v.N = n
					add("correlation", quantity, "", "", at, "", v)
				}
				of("pooled", e.Pooled, e.N)
				of("rank", e.Spearman, e.N)
				of("p", e.P, e.N)
				of("q", e.Q, e.N)
			}
		}
	}
	for _, m := range x.Migrations {
		c := cell(m.Levels)
		add("migration", "logical", c, m.Part, "", "count", bare(float64(m.Logical)))
		add("migration", "physical", c, m.Part, "", "count", bare(float64(m.Physical)))
		add("migration", "per second", c, m.Part, "", "1/s", m.PerSecond)
		add("migration", "on place", c, m.Part, "", "share", bare(m.OnPlace))
		add("migration", "doubled", c, m.Part, "", "share", bare(m.Doubled))
	}
	for _, d := range x.Doses {
		c := strings.TrimSpace(cell(d.Levels) + " " + d.State)
		add("dose-response", "per neighbour", c, d.Part, "", "%", d.PerNeighbour)
		for _, p := range d.Points {
			add("dose-response", "value", c, d.Part, strconv.Itoa(p.Neighbours), "", p.Value)
		}
	}
	for _, v := range x.Validities {
		of := func(quantity string, value analyse.Num) {
			i := bare(float64(value))
			i.N = v.N
			add("signal-validity", quantity, "", v.Part, v.Signal+" "+v.Workload, "", i)
		}
		of("correlation", v.Pearson)
		of("rank", v.Spearman)
		of("p", v.P)
	}
	return all
}

// CSV writes every number of the results: a row each, empty fields where there
// is nothing. The first lines are comments, after #, with what the numbers must
// not be taken for.
func CSV(w io.Writer, r *Report) error {
	b := bufio.NewWriter(w)
	for _, s := range r.stamps() {
		fmt.Fprintf(b, "# %s\n", strings.ReplaceAll(s, "\n", " "))
	}
	c := csv.NewWriter(b)
	// The errors of a buffered writer last until Flush.
	_ = c.Write([]string{"analysis", "quantity", "cell", "part", "at", "unit", "value", "low", "high", "level", "method", "n"})
	for _, v := range Values(&r.ordered().Results) {
		_ = c.Write([]string{v.Analysis, v.Quantity, v.Cell, v.Part, v.At, v.Unit, exactly(v.Value), exactly(v.Low), exactly(v.High), exactly(analyse.Num(v.Level)), v.Method, strconv.Itoa(v.N)})
	}
	c.Flush()
	if err := c.Error(); err != nil {
		return fmt.Errorf("render CSV: %w", err)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("render CSV: %w", err)
	}
	return nil
}

// exactly is a number so that it reads back as it was, "" for none.
func exactly(n analyse.Num) string {
	if number(float64(n)) == unknown {
		return ""
	}
	return strconv.FormatFloat(float64(n), 'g', -1, 64)
}

// JSONL writes the same as JSON lines: first an object with the study and its
// stamps, then a Value a line.
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
