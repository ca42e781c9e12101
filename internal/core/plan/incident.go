package plan

import (
	"slices"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Analysis is the result of one analysis of an incident. Its Suspects are never changed after
// it was returned.
type Analysis struct {
	Analysed sample.Millis `json:"analysed,omitempty"` // when it was made
	detect.Result
	// Reason is what the analysis rests on, in words.
	Reason string `json:"reason,omitempty"`
}

// Finding is one antagonist that an incident named.
type Finding struct {
	// Suspect has the strongest grounds on which it was named, and what caps on it have
	// shown since: after a cap in vain it is at most possible.
	Suspect detect.Suspect `json:"suspect"`
	// From and Until are the first and the last analysis that named it.
	From  sample.Millis `json:"from"`
	Until sample.Millis `json:"until"`
	// Group is the ID of the first round that capped it together with others, if it was named for
	// that (detect.ByGroup); equal for all of them.
	Group string `json:"group,omitempty"`
}

// Incident is an anomaly with what was found, done and achieved, as of Updated. Its
// Analysis is the strongest that was made (record.go).
type Incident struct {
	ID      string            `json:"id"`
	Machine string            `json:"machine"`
	Rule    detect.Method     `json:"rule"`
	Signal  sample.SignalName `json:"signal"`
	Variant string            `json:"variant"`
	Victim  sample.Task       `json:"victim"`
	Began   sample.Millis     `json:"began"`  // end of the first bad interval
	Opened  sample.Millis     `json:"opened"` // when it was found
	// Accused is when a suspect was first named, 0 if none was. Anomaly is the end of the
	// interval whose outlier led to that.
	Accused sample.Millis `json:"accused,omitempty"`
	Anomaly sample.Millis `json:"anomaly,omitempty"`
	// Busy is the usage of all tasks together when it was found, or when a suspect was
	// first named, CPU-s/s.
	Busy    float64       `json:"busy,omitempty"`
	Updated sample.Millis `json:"updated"`
	Closed  sample.Millis `json:"closed,omitempty"`
	Mode    Mode          `json:"mode"`
	// The victim's spec at the latest analysis.
	SpecMean   float64 `json:"spec_mean"`
	SpecStdDev float64 `json:"spec_stddev"`
	SpecOwn    bool    `json:"spec_own"`
	// SpecSamples is the number of samples of the spec if it is provisional: nothing is done then.
	SpecSamples int64 `json:"spec_samples,omitempty"`
	Analysis
	// Latest is the latest analysis; nil if that is the strongest.
	Latest *Analysis `json:"latest,omitempty"`
	// Findings are the antagonists that were named, ordered by their first naming.
	Findings []Finding `json:"findings,omitempty"`
	Rounds   []*Round  `json:"rounds"`

	// The planner's response to the latest analysis.
	Outcome Outcome `json:"outcome,omitempty"`
	// Follows: a change has lasted so long that the victim's spec follows (Planner.follow).
	Follows bool   `json:"follows,omitempty"`
	NotDone string `json:"not_done,omitempty"` // why nothing, or nothing more, was done
	Advice  string `json:"advice,omitempty"`
	// Escalation is what an operator is asked to do; nil if nothing.
	Escalation *Escalation `json:"escalation,omitempty"`
}

// incident is an open Incident as the planner keeps it.
type incident struct {
	Incident                      // its Analysis, Latest, Findings and Rounds are empty
	key             incidentKey   // under which it is open: what caps show may change the kind
	rounds          []*round      // ordered by start
	lastDisturbance sample.Millis // the last outlier or end of a cap
	// best is the strongest analysis, latest the latest; they may be the same.
	best, latest *Analysis
	named        []*named
	change       int                       // number of its latest change that is to be recorded, 0 for none
	freed        map[sample.TaskKey]string // not to be capped again, with why (Planner.free)
	// conclusive is the Kind of the latest conclusive analysis.
	conclusive detect.Kind
	allBad     bool          // detect.Finding.AllBad of the first analysis
	first      sample.Millis // end of the first bad interval of the latest analysis
}

// value is the current state of the incident.
func (inc *incident) value() Incident {
	v := inc.Incident
	v.Analysis = *inc.best
	if inc.latest != inc.best {
		latest := *inc.latest
		v.Latest = &latest
	}
	for _, n := range inc.named {
		v.Findings = append(v.Findings, n.Finding)
	}
	v.Rounds = make([]*Round, len(inc.rounds))
	for i, r := range inc.rounds {
		now := r.Round
		now.With = slices.Clone(r.With)
		v.Rounds[i] = &now
	}
	return v
}

// Now is the latest analysis.
func (inc *Incident) Now() *Analysis {
	if inc.Latest != nil {
		return inc.Latest
	}
	return &inc.Analysis
}
