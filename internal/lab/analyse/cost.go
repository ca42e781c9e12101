package analyse

import (
	"cmp"
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// DoseCost is the cost of work in an environment, alone and on a full machine: the
// price of a CPU (paper 002, table 5.1) and the work that it buys.
type DoseCost struct {
	Levels []study.Level `json:"levels"`
	Part   string        `json:"part"`
	State  string        `json:"state"`
	Price  study.Price   `json:"price"` // of an hour of a CPU
	// CPUs are the paid ones: the part's own. The other CPUs of a machine that is
	// rented whole are not included, so the real cost of that machine at its lowest
	// dose is higher than this figure.
	CPUs int    `json:"cpus"`
	Unit string `json:"unit"` // e.g. addition/USD
	// Lone and Full are the work per unit of the currency, at the lowest dose and at
	// the highest.
	Lone Interval `json:"lone"`
	Full Interval `json:"full"`
	// OverBase is the difference between the work at the highest dose and that of the
	// base, in percent; NaN if there is no base.
	OverBase Interval `json:"over_base_percent"`
}

// DoseCosts is empty if no price is known. It leaves out doses with idle neighbours: no
// noisy neighbour is paid for there.
func DoseCosts(runs []result.Run, o DoseOptions) []DoseCost {
	if o.Price == nil {
		return nil
	}
	all := doses(runs, o)
	var out []DoseCost
	for _, d := range all {
		price := o.Price(d.node)
		if price.Amount == 0 || d.dose.State == "idle" {
			continue
		}
		first, last := d.ends()
		c := DoseCost{Levels: d.dose.Levels, Part: d.dose.Part, State: d.dose.State, Price: price, CPUs: d.paid(last), Unit: workUnit(d.node.FigureUnit()) + "/" + price.Currency,
			Lone: d.work(first, price), Full: d.work(last, price), OverBase: Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN(), Level: level, Method: "none"}}
		for _, base := range all {
			other := o.Price(base.node)
			if !d.comparableTo(base, o) || other.Amount == 0 {
				continue
			}
			_, most := base.ends()
			// The base takes longer by this interval; the other factors of the work per
			// price are not estimates.
			factor := d.yield(last, price) / base.yield(most, other)
			c.OverBase = d.longer(base.values[most], d.values[last], o.Seed).apply(func(v float64) float64 { return 100 * ((1+v/100)*factor - 1) })
		}
		out = append(out, c)
	}
	return out
}

// paid is the number of CPUs of the measured part.
func (d *doseRuns) paid(n int) int { return cmp.Or(d.node.Environment.CPUs, d.own[n]) }

// yield is the number of seconds of work per unit of the currency: of each thread where
// each thread does units of its own (quell's workloads), of the part where a command is
// measured as a whole.
func (d *doseRuns) yield(n int, price study.Price) float64 {
	workers := 1
	if d.node.Workload.Builtin != "" {
		workers = d.own[n]
	}
	return 3600 * float64(workers) / (price.Amount * float64(d.paid(n)))
}

// work is the number of units of work per unit of the currency.
func (d *doseRuns) work(n int, price study.Price) Interval {
	i, y := meanInterval(d.values[n].means(), "t over runs"), d.yield(n, price)
	if d.metric.Better == "lower" {
		i.Value, i.Low, i.High = y/i.Value, y/i.High, y/i.Low
		if i.High < i.Low { // the lower bound of its time is below 0: no interval
			i.Low, i.High = math.NaN(), math.NaN()
		}
		return i
	}
	return i.apply(func(v float64) float64 { return y * v })
}

// workUnit is the unit of work in a metric's unit: "s/addition", "iterations/s".
func workUnit(unit string) string {
	if work, ok := strings.CutPrefix(unit, "s/"); ok {
		return work
	}
	if work, ok := strings.CutSuffix(unit, "/s"); ok {
		return work
	}
	return "work"
}
