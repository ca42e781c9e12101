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
	WouldCap      Outcome = "would-cap"      // advise: nothing was done
	NotActed      Outcome = "not-acted"      // see Reason
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

// Analysis is what detection found of an incident.
type Analysis struct {
	Kind detect.Kind
	// Change is what the victim changed of itself, if Kind is PhaseChange;
	// Follows, that this has lasted so long that its spec follows.
	Change  detect.Change
	Follows bool
	// HeldBy is the cgroup above the victim whose quota it was, if Kind is
	// OwnQuota; "" for its own.
	HeldBy               string
	SpecMean, SpecStdDev float64
	SpecOwn              bool
	Threshold            float64
	Cost                 float64 // mean since Began, at the newest analysis
	Bad                  int     // bad intervals in the outlier window then
	Pairs                int
	Suspects             []detect.Suspect // never changed once it is here
	Antagonists          int              // of Suspects, that clear the bar
}

// Decision is what the planner made of it.
type Decision struct {
	Outcome Outcome
	Reason  string // why nothing, or nothing more, was done
	Advice  string
	// Escalation is what an operator is asked to do; nil if nothing.
	Escalation *Escalation
}

// Incident is an anomaly with what was found, done and achieved, as it stood at
// Updated.
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
	// Accused is when a suspect first cleared the bar, 0 if none has, and
	// Anomaly the end of the interval whose outlier led to that.
	Accused, Anomaly sample.Millis
	Updated, Closed  sample.Millis
	// Busy is what all tasks together used when it was found, or when a suspect
	// was first accused, CPU-s/s.
	Busy float64
	Analysis
	Decision
	Rounds []Round
}

// incident is an open Incident as the planner keeps it.
type incident struct {
	Incident               // its Rounds are nil
	rounds   []*round      // by when they began
	unrest   sample.Millis // the last outlier or end of a cap
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
}

// value is the incident as it is now.
func (inc *incident) value() Incident {
	v := inc.Incident
	v.Rounds = make([]Round, len(inc.rounds))
	for i, r := range inc.rounds {
		v.Rounds[i] = r.Round
	}
	return v
}
