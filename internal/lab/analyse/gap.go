package analyse

import (
	"math"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// DoseGap compares an environment with another one, e.g. a virtual machine with metal,
// at both ends of its dose: how much longer a unit of work takes, in percent. The
// paper's 12xlarge loses nothing compared with itself alone, and 36.7 % compared with
// metal (002, 5.2.1).
type DoseGap struct {
	Levels []study.Level `json:"levels"` // that both have
	Part   string        `json:"part"`
	Of     string        `json:"of"`
	Over   string        `json:"over"`
	// Lone and Full are the busy threads at the ends of Of's dose. A value for which
	// Over has no runs is NaN.
	Lone int `json:"lone_threads"`
	Full int `json:"full_threads"`
	// First is the lone one's time over Over's at as many threads: the loss of the
	// first virtual machine compared with metal.
	First Interval `json:"first_percent"`
	// OverOwnLowest is the highest dose over its own lowest, OverBaseLowest over Over at the lone
	// one's threads.
	OverOwnLowest  Interval `json:"from_lone_percent"`
	OverBaseLowest Interval `json:"from_base_percent"`
	// AtFull compares both at the highest dose's threads.
	AtFull  Interval    `json:"at_full_percent"`
	Meeting Equivalence `json:"meeting"`
}

// Equivalence says whether two things take equally long at the highest dose.
type Equivalence string

// The meetings. Met means that the whole interval is within the margin: a test of
// equivalence (Schuirmann 1987), not the failure to find a difference. Apart means that
// all of it is beyond the margin.
const (
	Equivalent Equivalence = "met"
	Different  Equivalence = "apart"
	Undecided  Equivalence = "not decided"
)

func equivalence(i Interval, margin float64) Equivalence {
	switch {
	case !finite(i.Low, i.High):
		return Undecided
	case i.Low > -margin && i.High < margin:
		return Equivalent
	case i.Low > margin || i.High < -margin:
		return Different
	}
	return Undecided
}

// DoseGaps compares each environment with the base of the options.
func DoseGaps(runs []result.Run, o DoseOptions) []DoseGap {
	all := doses(runs, o)
	var out []DoseGap
	for _, of := range all {
		for _, over := range all {
			if !of.comparableTo(over, o) {
				continue
			}
			first, last := of.ends()
			g := DoseGap{Levels: without(of.dose.Levels, o.VE), Part: of.dose.Part, Of: of.ve, Over: over.ve, Lone: of.threads[first], Full: of.threads[last]}
			lone, full := over.with(g.Lone), over.with(g.Full)
			if lone == nil && full == nil {
				continue
			}
			g.First, g.OverBaseLowest, g.AtFull = of.longer(of.values[first], lone, o.Seed), of.longer(of.values[last], lone, o.Seed), of.longer(of.values[last], full, o.Seed)
			g.OverOwnLowest = Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN(), Level: level, Method: "none"}
			if first != last {
				g.OverOwnLowest = of.longer(of.values[last], of.values[first], o.Seed)
			}
			g.Meeting = equivalence(g.AtFull, o.Margin)
			out = append(out, g)
		}
	}
	return out
}

// ends returns the lowest and the highest dose.
func (d *doseRuns) ends() (first, last int) {
	ns := sortedKeys(d.values)
	return ns[0], ns[len(ns)-1]
}

// with returns the values measured with that many busy threads, nil if there are none.
func (d *doseRuns) with(threads int) Levels {
	for _, n := range sortedKeys(d.values) {
		if d.threads[n] == threads {
			return d.values[n]
		}
	}
	return nil
}
