package plan

import (
	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/stat"
)

// Outcome is what came of a cap, or of an incident without one.
type Outcome string

// The outcomes. The first three are CPI²'s (section 7.2), by the spec's σ.
const (
	TruePositive  Outcome = "true-positive"  // the victim's cost fell by more than one σ
	FalsePositive Outcome = "false-positive" // it rose by more than one σ
	Noise         Outcome = "noise"          // neither
	SuspectExited Outcome = "suspect-exited" // the capped task ended; its absence proves nothing of the cap
	VictimExited  Outcome = "victim-exited"
	NotMeasured   Outcome = "not-measured"   // the cap ended before the victim gave a sample under it
	CapFailed     Outcome = "cap-failed"     // it could not be applied
	CapTakenOver  Outcome = "cap-taken-over" // another program changed the limit meanwhile
	WouldCap      Outcome = "would-cap"      // advise: a cap or a trial was advised, and nothing done
	NotActed      Outcome = "not-acted"      // see Decision.NotDone
)

// Round is one attempt to help the victim.
type Round struct {
	ID          string // of the cap
	Suspect     sample.Task
	Correlation float64
	Rate        float64 // CPU-s/s; 0 where IO or Net says what was limited
	IO          IORate  // to each disk that it shares with the victim
	Net         uint64  // bytes/s that it sent, where those were limited
	From, Until sample.Millis
	Ended       sample.Millis // 0 while it lasts
	By          string        // "quell" or the operator
	Why         string
	// Trial: the suspect was held to find out whether it is the antagonist.
	Trial bool
	// Feedback: Rate followed the victim's cost, is what it came to, and was
	// changed Adjusted times.
	Feedback bool
	Adjusted int
	// CostBefore is the victim's mean cost in the anomaly before the cap,
	// CostUnder under it without the first sample, RelativeCost their ratio; NaN
	// where they are not known.
	CostBefore, CostUnder, RelativeCost float64
	Samples                             int64 // that CostUnder is the mean of
	Outcome                             Outcome
}

// Analysis is what one analysis said of an incident.
type Analysis struct {
	Analysed sample.Millis `json:"analysed"` // when it was made
	Kind     detect.Kind   `json:"kind"`
	// Change is what the victim changed of itself, if Kind is PhaseChange.
	Change detect.Change `json:"change,omitempty"`
	// HeldBy is the cgroup above the victim whose quota it was, if Kind is
	// OwnQuota; "" for its own.
	HeldBy    string  `json:"held_by,omitempty"`
	Threshold float64 `json:"threshold"`
	Cost      float64 `json:"cost"`  // mean since Incident.Began
	Bad       int     `json:"bad"`   // bad intervals in the outlier window
	Pairs     int     `json:"pairs"` // intervals that were compared
	// Suspects are ranked, those that are named first; the slice is never changed
	// once it was given.
	Suspects []detect.Suspect `json:"suspects"`
	// Antagonists is how many of Suspects are named: level likely or proven.
	Antagonists int `json:"antagonists"`
	// Reason is what the analysis rests on, in words.
	Reason string `json:"reason,omitempty"`
}

// Finding is one antagonist that an incident named.
type Finding struct {
	// Suspect has the strongest grounds on which it was named, and what caps on it
	// have shown since: after one in vain it is no more than possible.
	Suspect detect.Suspect `json:"suspect"`
	// From and Until are the first and the last analysis that named it.
	From  sample.Millis `json:"from"`
	Until sample.Millis `json:"until"`
}

// Decision is what the planner made of the latest analysis.
type Decision struct {
	Outcome Outcome
	// Follows: a phase change has lasted so long that the victim's spec follows.
	Follows bool
	NotDone string // why nothing, or nothing more, was done
	Advice  string
	// Escalation is what an operator is asked to do; nil if nothing.
	Escalation *Escalation
}

// Incident is an anomaly with what was found, done and achieved, as it stood at
// Updated. It remembers: its Analysis is the strongest that was made (record.go).
type Incident struct {
	ID      string
	Machine string
	Rule    detect.Rule
	Signal  sample.SignalName
	Variant string
	Mode    Mode
	Victim  sample.Task
	Began   sample.Millis // end of the first bad interval
	Opened  sample.Millis // when it was found
	// Accused is when a suspect was first named, 0 if none was, and Anomaly the
	// end of the interval whose outlier led to that.
	Accused, Anomaly sample.Millis
	Updated, Closed  sample.Millis
	// Busy is what all tasks together used when it was found, or when a suspect
	// was first named, CPU-s/s.
	Busy float64
	// The victim's spec at the latest analysis.
	SpecMean, SpecStdDev float64
	SpecOwn              bool
	Analysis
	// Latest is the latest analysis; nil where that is the strongest.
	Latest *Analysis
	// Findings are the antagonists that were named, by when they first were.
	Findings []Finding
	Decision
	Rounds []Round
}

// incident is an open Incident as the planner keeps it.
type incident struct {
	Incident               // its Analysis, Latest, Findings and Rounds are empty
	rounds   []*round      // by when they began
	unrest   sample.Millis // the last outlier or end of a cap
	// best is the strongest analysis, latest the latest; they may be the same.
	best, latest *Analysis
	named        []*named
	// told is the Kind of the latest analysis that told something.
	told detect.Kind
}

// round is a Round as the planner keeps it.
type round struct {
	Round
	applied  bool
	first    bool // the first sample under the cap was left out
	under    stat.Moments
	outliers int
	failing  bool   // outliers enough under it for another round
	lifted   bool   // by an operator, before its end
	slack    int    // intervals in a row in which a cap that may end early held nothing back
	curve    *curve // of a feedback cap
	// analysis is the latest of when the cap began.
	analysis *Analysis
}

// value is the incident as it is now.
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
	v.Rounds = make([]Round, len(inc.rounds))
	for i, r := range inc.rounds {
		v.Rounds[i] = r.Round
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
