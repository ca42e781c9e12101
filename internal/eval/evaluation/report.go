package evaluation

import (
	"cmp"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	corestat "github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/eval/stat"
)

// Share is a share with its two-sided 95 % confidence interval (Clopper and Pearson, 1934).
type Share struct {
	K     int     `json:"k"`
	N     int     `json:"n"`
	Value float64 `json:"value"` // 0 if N is 0
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

func shareOf(k, n int) Share {
	if n == 0 {
		return Share{High: 1}
	}
	low, high := stat.ShareInterval(k, n)
	return Share{k, n, float64(k) / float64(n), low, high}
}

// Rates are the outcomes of caps in a class (figures 15a, 16a, 16b).
type Rates struct {
	Band Band `json:"band"`
	// From and To are the bounds of the class, To 0 for none: of correlation, from From on;
	// of σ, between the two.
	From          float64 `json:"from"`
	To            float64 `json:"to,omitempty"`
	TruePositive  Share   `json:"true_positive"`
	FalsePositive Share   `json:"false_positive"`
	Noise         Share   `json:"noise"`
	// Relative is the median relative cost of the true positives (figure 15b).
	Relative incident.Value `json:"median_relative_cost"`
}

// Load is a quarter of the incidents, by the load of the machine (figure 14).
type Load struct {
	From        float64        `json:"from"` // CPU-s/s of all tasks
	To          float64        `json:"to"`
	Identified  Share          `json:"identified"`
	Correlation incident.Value `json:"median_correlation"` // of those with an accused task
	Degradation incident.Value `json:"median_degradation"`
}

// Quantiles of a distribution; Values are null if N is 0.
type Quantiles struct {
	Band   Band             `json:"band,omitempty"`
	Of     string           `json:"of"`
	N      int              `json:"n"`
	Values []incident.Value `json:"values"` // at Levels
}

// Levels are the quantiles of every distribution.
func Levels() []float64 { return []float64{0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99} }

// Degraded is the median relative cost by the victim's degradation (figure 16c).
type Degraded struct {
	Band     Band           `json:"band"`
	From     float64        `json:"from"` // cost before the cap ÷ mean
	To       float64        `json:"to,omitempty"`
	N        int            `json:"n"`
	Relative incident.Value `json:"median_relative_cost"`
}

// Offender is a pair of jobs that occurs in incidents.
type Offender struct {
	Pair
	Accused int `json:"accused"` // incidents in which the antagonist was accused first
	// Helped is the share of measured caps on it that helped, Relative the median of the
	// victim's cost under them ÷ before.
	Helped   Share          `json:"helped"`
	Relative incident.Value `json:"median_relative_cost"`
}

// Moment is an incident as figure 14 draws it.
type Moment struct {
	Identified                            bool
	Utilisation, Correlation, Degradation float64 // NaN if not known
}

// Cap is a measured cap as figures 15 and 16 draw it.
type Cap struct {
	Band                                                   Band
	Correlation, Sigmas, Degradation, RelativeCost, Misses float64 // Misses is NaN if not known
	Outcome                                                plan.Outcome
}

// Report contains the figures of section 7.
type Report struct {
	Incidents int     `json:"incidents"`
	Days      float64 `json:"machine_days,omitempty"`
	// PerDay is the number of incidents with an accused task per machine-day; the paper has
	// 0.37.
	PerDay     incident.Value `json:"accusing_incidents_per_machine_day"`
	Identified Share          `json:"identified"`
	// OutcomeRate is the paper's true-positive rate: the share of measured caps
	// under which the cost fell by more than σ, by band. No label is needed.
	OutcomeRate []Rates `json:"outcome_rate"`
	// Precision is another figure: the share of right accusations, according to labels. Nil
	// if there are none.
	Precision *Share `json:"labelled_precision,omitempty"`

	Load        []Load         `json:"load"`
	Utilisation Quantiles      `json:"utilisation"`           // figure 14b: of machines when a task was accused; N is 0 if it is not known
	LoadRank    incident.Value `json:"load_correlation_rank"` // Spearman's, of load and correlation
	Costs       []Quantiles    `json:"degradation"`           // figure 14d
	ByThreshold []Rates        `json:"by_correlation"`        // figures 15a, 15b, 16a
	BySigmas    []Rates        `json:"by_sigmas"`             // figure 16b
	ByDegraded  []Degraded     `json:"by_degradation"`        // figure 16c
	Relative    []Quantiles    `json:"relative_cost"`         // figure 16d
	Offenders   []Offender     `json:"offenders"`             // pairs with most accusations and caps first

	Cluster *Cluster `json:"cluster,omitempty"` // nil without samples of a cluster
	// Paper compares with the paper's values.
	Paper []Comparison `json:"paper"`
	// Every incident and cap, for plots and CSV.
	Moments []Moment `json:"-"`
	Caps    []Cap    `json:"-"`
}

// Report computes the report.
func (e *Evaluation) Report() Report {
	r := Report{Incidents: len(e.found), Days: e.Days, PerDay: incident.Value(math.NaN()), LoadRank: incident.Value(e.loadRank())}
	identified := 0
	for i := range e.found {
		if e.found[i].identified {
			identified++
		}
	}
	r.Identified = shareOf(identified, len(e.found))
	if e.Days > 0 {
		r.PerDay = incident.Value(float64(identified) / e.Days)
	}
	if e.Accusations > 0 {
		p := shareOf(e.Right, e.Accusations)
		r.Precision = &p
	}
	r.Load, r.Offenders = e.byLoad(), e.offenders()
	for _, is := range []bool{true, false} {
		name := "no antagonist was identified"
		if is {
			name = "an antagonist was identified"
		}
		var all []float64
		for i := range e.found {
			if e.found[i].identified == is {
				all = append(all, e.found[i].degradation)
			}
		}
		r.Costs = append(r.Costs, quantiles("", name, all))
	}
	for _, b := range Bands() {
		r.OutcomeRate = append(r.OutcomeRate, e.rates(b, 0, func(*measuredCap) bool { return true }))
		for _, from := range []float64{0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6} {
			r.ByThreshold = append(r.ByThreshold, e.rates(b, from, func(x *measuredCap) bool { return x.correlation >= from }))
		}
		for i, edges := 0, []float64{1, 2, 3, 4, 5, 7, 10, 15, math.Inf(1)}; i+1 < len(edges); i++ {
			rates := e.rates(b, edges[i], func(x *measuredCap) bool { return x.sigmas >= edges[i] && x.sigmas < edges[i+1] })
			if rates.To = edges[i+1]; math.IsInf(rates.To, 1) {
				rates.To = 0
			}
			r.BySigmas = append(r.BySigmas, rates)
		}
		for i, edges := 0, []float64{1, 1.25, 1.5, 2, 3, 5, math.Inf(1)}; i+1 < len(edges); i++ {
			all := e.relative(b, func(x *measuredCap) bool { return x.degradation >= edges[i] && x.degradation < edges[i+1] })
			d := Degraded{Band: b, From: edges[i], To: edges[i+1], N: len(all), Relative: median(all)}
			if math.IsInf(d.To, 1) {
				d.To = 0
			}
			r.ByDegraded = append(r.ByDegraded, d)
		}
		r.Relative = append(r.Relative,
			quantiles(b, "all measured caps", e.relative(b, func(*measuredCap) bool { return true })),
			quantiles(b, "true positives", e.relative(b, (*measuredCap).helped)))
	}
	var utilisation []float64
	for i := range e.found {
		f := &e.found[i]
		r.Moments = append(r.Moments, Moment{f.identified, f.utilisation(), f.correlation, f.degradation})
		if u := f.utilisation(); f.identified && !math.IsNaN(u) {
			utilisation = append(utilisation, u)
		}
	}
	for i := range e.rounds {
		x := &e.rounds[i]
		r.Caps = append(r.Caps, Cap{x.band, x.correlation, x.sigmas, x.degradation, x.relative, x.misses, x.outcome})
	}
	r.Utilisation = quantiles("", "utilisation", utilisation)
	r.Cluster, r.Paper = e.cluster, e.compare(&r)
	return r
}

func (e *Evaluation) rates(b Band, from float64, in func(*measuredCap) bool) Rates {
	n := map[plan.Outcome]int{}
	all := 0
	for i := range e.rounds {
		if r := &e.rounds[i]; r.band == b && in(r) {
			n[r.outcome]++
			all++
		}
	}
	return Rates{Band: b, From: from, TruePositive: shareOf(n[plan.TruePositive], all), FalsePositive: shareOf(n[plan.FalsePositive], all),
		Noise: shareOf(n[plan.Noise], all), Relative: median(e.relative(b, func(x *measuredCap) bool { return in(x) && x.outcome == plan.TruePositive }))}
}

func (e *Evaluation) relative(b Band, in func(*measuredCap) bool) (all []float64) {
	for i := range e.rounds {
		if r := &e.rounds[i]; r.band == b && in(r) {
			all = append(all, r.relative)
		}
	}
	return all
}

// offenders lists the pairs.
func (e *Evaluation) offenders() []Offender {
	all := []Offender{}
	for p, t := range e.pairs {
		n := len(t.relative)
		all = append(all, Offender{p, t.accused, shareOf(t.outcomes[plan.TruePositive], n), median(t.relative)})
	}
	slices.SortFunc(all, func(a, b Offender) int {
		return cmp.Or(cmp.Compare(b.Accused+b.Helped.N, a.Accused+a.Helped.N), cmp.Compare(a.Victim, b.Victim), cmp.Compare(a.Antagonist, b.Antagonist))
	})
	return all
}

// byLoad sorts the incidents by load and divides them into quarters of equal number. Those of
// which it is not known are left out.
func (e *Evaluation) byLoad() []Load {
	sorted := slices.DeleteFunc(slices.Clone(e.found), func(f found) bool { return math.IsNaN(f.busy) })
	slices.SortStableFunc(sorted, func(a, b found) int { return cmp.Compare(a.busy, b.busy) })
	var loads []Load
	const quarters = 4
	for q := range quarters {
		part := sorted[q*len(sorted)/quarters : (q+1)*len(sorted)/quarters]
		if len(part) == 0 {
			continue
		}
		var correlation, degradation []float64
		k := 0
		for i := range part {
			degradation = append(degradation, part[i].degradation)
			if !part[i].identified {
				continue
			}
			if k++; !math.IsNaN(part[i].correlation) {
				correlation = append(correlation, part[i].correlation)
			}
		}
		loads = append(loads, Load{part[0].busy, part[len(part)-1].busy, shareOf(k, len(part)), median(correlation), median(degradation)})
	}
	return loads
}

// loadRank is Spearman's rank correlation of the machine's load with that of the
// identified antagonist; NaN of fewer than three.
func (e *Evaluation) loadRank() float64 {
	var load, correlation []float64
	for i := range e.found {
		if f := &e.found[i]; f.identified && !math.IsNaN(f.correlation) && !math.IsNaN(f.busy) {
			load, correlation = append(load, f.busy), append(correlation, f.correlation)
		}
	}
	if len(load) < 3 {
		return math.NaN()
	}
	return corestat.Spearman(load, correlation)
}

func median(all []float64) incident.Value {
	return incident.Value(corestat.Quantile(slices.Sorted(slices.Values(all)), 0.5))
}

func quantiles(b Band, of string, all []float64) Quantiles {
	sorted := slices.Sorted(slices.Values(all))
	q := Quantiles{Band: b, Of: of, N: len(all)}
	for _, level := range Levels() {
		q.Values = append(q.Values, incident.Value(corestat.Quantile(sorted, level)))
	}
	return q
}
