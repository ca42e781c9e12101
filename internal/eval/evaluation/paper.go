package evaluation

import (
	"math"

	"github.com/quell-dev/quell/internal/core/incident"
)

// Comparison is a value of the paper next to the one that was evaluated.
type Comparison struct {
	Figure string         `json:"figure"`
	What   string         `json:"what"`
	Paper  float64        `json:"paper"`
	Here   incident.Value `json:"here"` // null if it was not measured
	N      int            `json:"n"`    // incidents, caps or samples that it rests on
}

// The values that CPI² prints (testdata/reference/cpi2_headline.csv; the coefficient of
// variation is in the text of section 3 about figure 5).
const (
	paperPerDay       = 0.37
	paperOutcomeRate  = 0.70 // production, correlation of 0.35 or more
	paperAllCaps      = 0.63 // median relative CPI, production
	paperHelped       = 0.52 // the same, of true positives
	paperHelpedOthers = 0.82 // non-production
	paperMisses       = 0.87
	paperVariation    = 0.04
	paperSpread       = 0.16 / 1.8 // σ ÷ mean of figure 7
	paperShape        = -0.0534
	// PaperCorrelation is the threshold of the correlation, from which on the paper's figures
	// of outcomes count.
	PaperCorrelation = 0.35
)

// compare lists what the paper prints and what was found.
func (e *Evaluation) compare(r *Report) []Comparison {
	over := func(b Band) (n, helped int, all, good []float64) {
		for i := range e.rounds {
			x := &e.rounds[i]
			if x.band != b || x.correlation < PaperCorrelation {
				continue
			}
			n++
			all = append(all, x.relative)
			if x.helped() {
				helped++
				good = append(good, x.relative)
			}
		}
		return n, helped, all, good
	}
	n, helped, all, good := over(Production)
	_, _, _, others := over(NonProduction)
	list := []Comparison{
		{"7", "incidents with an accusation per machine-day", paperPerDay, r.PerDay, r.Identified.K},
		{"16a", "share of caps that helped, production, correlation ≥ 0.35", paperOutcomeRate, incident.Value(float64(helped) / float64(n)), n},
		{"16d", "median relative cost of all caps, production", paperAllCaps, median(all), n},
		{"15b", "median relative cost of caps that helped, production", paperHelped, median(good), len(good)},
		{"15b", "the same, non-production", paperHelpedOthers, median(others), len(others)},
	}
	c := e.cluster
	if c == nil {
		return list
	}
	list = append(list, Comparison{"15c", "correlation of relative misses per instruction with relative cost", paperMisses, c.Capped.Misses, c.Capped.MissesN})
	if c.Course != nil {
		list = append(list, Comparison{"5", "coefficient of variation of a job's hourly mean cost", paperVariation, c.Course.Variation, len(c.Course.Hours)})
	}
	if len(c.Costs) > 0 {
		j := &c.Costs[0]
		shape := math.NaN()
		for _, f := range j.Fits {
			if f.GEV != nil {
				shape = f.GEV.Shape
			}
		}
		list = append(list, Comparison{"7", "σ ÷ mean of a job's costs", paperSpread, incident.Value(j.StdDev / j.Mean), int(j.Samples)},
			Comparison{"7", "shape of the fitted GEV", paperShape, incident.Value(shape), int(j.Samples)})
	}
	return list
}
