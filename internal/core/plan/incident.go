package plan

import (
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Outcome is the result of a cap, or of an incident without one.
type Outcome string

// The outcomes. The first three are CPI²'s (section 7.2), by the spec's σ and, for mild
// harm, by Policy.Relief.
const (
	TruePositive  Outcome = "true-positive"  // the victim's cost fell by more than one σ
	FalsePositive Outcome = "false-positive" // it rose by more than one σ
	Noise         Outcome = "noise"          // neither
	SuspectExited Outcome = "suspect-exited" // the capped task ended; its absence says nothing about the cap
	VictimExited  Outcome = "victim-exited"
	NotMeasured   Outcome = "not-measured"   // the cap ended before the victim gave a sample under it
	CapFailed     Outcome = "cap-failed"     // it could not be applied
	CapTakenOver  Outcome = "cap-taken-over" // another program changed the limit meanwhile
	WouldCap      Outcome = "would-cap"      // advise: a cap or a trial was advised, and nothing done
	NotActed      Outcome = "not-acted"      // see Incident.NotDone
)

// Round is one attempt to help the victim.
type Round struct {
	ID          string        `json:"id"` // of the cap
	Suspect     sample.Task   `json:"suspect"`
	Correlation float64       `json:"correlation"`
	Rate        float64       `json:"rate"`          // CPU-s/s; 0 if IO or Net was the limit
	IO          IORate        `json:"io,omitzero"`   // for each disk that it shares with the victim
	Net         uint64        `json:"net,omitempty"` // bytes/s that it sent, if those were limited
	From        sample.Millis `json:"from"`
	Until       sample.Millis `json:"until"`
	Ended       sample.Millis `json:"ended,omitempty"` // 0 while it lasts
	By          string        `json:"by"`              // "quell" or the operator
	Why         string        `json:"why,omitempty"`
	// Trial: the suspect was capped to find out whether it is the antagonist.
	Trial bool `json:"trial,omitempty"`
	// Feedback: Rate followed the victim's cost. It is the last rate and was changed
	// Adjusted times.
	Feedback bool `json:"feedback,omitempty"`
	Adjusted int  `json:"adjusted,omitempty"`
	// CostBefore is the victim's mean cost in the anomaly before the cap, CostUnder that
	// under it without the first sample, RelativeCost their ratio; NaN if they are not
	// known.
	CostBefore   stat.Float `json:"cost_before"`
	CostUnder    stat.Float `json:"cost_under"`
	RelativeCost stat.Float `json:"relative_cost"`
	Samples      int64      `json:"samples"` // number of samples in CostUnder
	Outcome      Outcome    `json:"outcome,omitempty"`
}

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
	Analysis
	// Latest is the latest analysis; nil if that is the strongest.
	Latest *Analysis `json:"latest,omitempty"`
	// Findings are the antagonists that were named, ordered by their first naming.
	Findings []Finding `json:"findings,omitempty"`
	Rounds   []*Round  `json:"rounds"`

	// The planner's response to the latest analysis.
	Outcome Outcome `json:"outcome,omitempty"`
	// Follows: a phase change has lasted so long that the victim's spec follows.
	Follows bool   `json:"follows,omitempty"`
	NotDone string `json:"not_done,omitempty"` // why nothing, or nothing more, was done
	Advice  string `json:"advice,omitempty"`
	// Escalation is what an operator is asked to do; nil if nothing.
	Escalation *Escalation `json:"escalation,omitempty"`
}

// incident is an open Incident as the planner keeps it.
type incident struct {
	Incident                      // its Analysis, Latest, Findings and Rounds are empty
	rounds          []*round      // ordered by start
	lastDisturbance sample.Millis // the last outlier or end of a cap
	// best is the strongest analysis, latest the latest; they may be the same.
	best, latest *Analysis
	named        []*named
	// conclusive is the Kind of the latest conclusive analysis.
	conclusive detect.Kind
}

// round is a Round as the planner keeps it.
type round struct {
	Round
	applied  bool
	first    bool // the first sample under the cap was left out
	under    stat.Moments
	outliers int
	failing  bool   // enough outliers under it for another round
	lifted   bool   // by an operator, before its end
	slack    int    // intervals in a row without binding, of a cap that may end early
	curve    *curve // of a feedback cap
	// analysis is the latest analysis when the cap began.
	analysis *Analysis
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
