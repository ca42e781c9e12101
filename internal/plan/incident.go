package plan

import (
	"encoding/json"
	"math"

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
	CapTakenOver  Outcome = "cap-taken-over" // somebody else changed the limit meanwhile
	WouldCap      Outcome = "would-cap"      // advise: nothing was done
	NotActed      Outcome = "not-acted"      // see Reason
)

// Value is a number that JSON may lack: NaN is written as null.
type Value float64

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(v))
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*v = Value(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(v))
}

// Round is one attempt to help the victim.
type Round struct {
	ID          string        `json:"id"` // of the cap
	Suspect     sample.Task   `json:"suspect"`
	Correlation float64       `json:"correlation"`
	Rate        float64       `json:"rate"`          // CPU-s/s; 0 where IO says what was limited
	IO          IORate        `json:"io,omitzero"`   // to each disk that it shares with the victim
	Net         uint64        `json:"net,omitempty"` // bytes/s that it sent, where those were limited
	From        sample.Millis `json:"from"`
	Until       sample.Millis `json:"until"`
	Ended       sample.Millis `json:"ended,omitempty"`
	By          string        `json:"by"` // "quell" or the operator
	Why         string        `json:"why,omitempty"`
	// Trial: it was held to find out whether it is the one.
	Trial bool `json:"trial,omitempty"`
	// Feedback: Rate followed the victim's cost, is what it came to, and was
	// changed Adjusted times.
	Feedback bool `json:"feedback,omitempty"`
	Adjusted int  `json:"adjusted,omitempty"`
	// CostBefore is the victim's mean cost in the anomaly before the cap,
	// CostUnder under it without the first sample; RelativeCost their ratio.
	CostBefore   Value   `json:"cost_before"`
	CostUnder    Value   `json:"cost_under"`
	RelativeCost Value   `json:"relative_cost"`
	Samples      int64   `json:"samples"` // that CostUnder is the mean of
	Outcome      Outcome `json:"outcome,omitempty"`

	applied  bool
	first    bool // the first sample under the cap was left out
	under    stat.Moments
	outliers int
	failing  bool   // outliers enough under it for another round
	lifted   bool   // by an operator, before its end
	slack    int    // intervals in a row in which a cap that may end early held nothing back
	curve    *curve // of a feedback cap
}

// Track is one task's line in an incident's picture.
type Track struct {
	Task  sample.TaskName `json:"task"`
	Usage []Value         `json:"usage"` // in the signal's unit, one per Incident.Times; null where there was none
}

// Incident is an anomaly with what was found, done and achieved.
type Incident struct {
	ID      string            `json:"id"`
	Machine string            `json:"machine"`
	Rule    detect.Rule       `json:"rule"`
	Signal  sample.SignalName `json:"signal"`
	Variant string            `json:"variant"`
	Kind    detect.Kind       `json:"kind"`
	Victim  sample.Task       `json:"victim"`
	// Change is what the victim changed of itself, if Kind is PhaseChange;
	// Follows, that this has lasted so long that its spec follows.
	Change  detect.Change `json:"change,omitempty"`
	Follows bool          `json:"follows,omitempty"`
	// HeldBy is the cgroup above the victim whose quota it was, if Kind is
	// OwnQuota; "" for its own.
	HeldBy string        `json:"held_by,omitempty"`
	Began  sample.Millis `json:"began"`  // end of the first bad interval
	Opened sample.Millis `json:"opened"` // when it was found
	// Accused is when a suspect first cleared the bar, 0 if none has, and
	// Anomaly the end of the interval whose outlier led to that.
	Accused sample.Millis `json:"accused,omitempty"`
	Anomaly sample.Millis `json:"anomaly,omitempty"`
	// Busy is what all tasks together used when it was found, or when somebody was
	// first accused, CPU-s/s.
	Busy        float64          `json:"busy,omitempty"`
	Updated     sample.Millis    `json:"updated"`
	Closed      sample.Millis    `json:"closed,omitempty"`
	Mode        Mode             `json:"mode"`
	SpecMean    float64          `json:"spec_mean"`
	SpecStdDev  float64          `json:"spec_stddev"`
	SpecOwn     bool             `json:"spec_own"`
	Threshold   float64          `json:"threshold"`
	Cost        float64          `json:"cost"` // mean since Began, at the newest analysis
	Bad         int              `json:"bad"`  // bad intervals in the outlier window then
	Pairs       int              `json:"pairs"`
	Suspects    []detect.Suspect `json:"suspects"`
	Antagonists int              `json:"antagonists"` // of Suspects, that clear the bar
	Rounds      []*Round         `json:"rounds"`
	Outcome     Outcome          `json:"outcome,omitempty"`
	Reason      string           `json:"reason,omitempty"` // why nothing, or nothing more, was done
	Advice      string           `json:"advice,omitempty"`
	// Escalation is what somebody who can do more is asked to do; nil if nothing.
	Escalation *Escalation `json:"escalation,omitempty"`
	// The picture: the victim's cost and the main suspects' usage over time.
	Times      []sample.Millis `json:"times"`
	VictimCost []Value         `json:"victim_cost"` // one per Times; null where not judged
	Usage      []Track         `json:"suspect_usage"`

	unrest  sample.Millis    // the last outlier or end of a cap
	watched []sample.TaskKey // whose usage the Tracks are
}

// MayBeANeighbour reports whether a neighbour may be behind it, rather than
// something that the victim did to itself or the hypervisor to all.
func (inc *Incident) MayBeANeighbour() bool {
	switch inc.Kind {
	case detect.Neighbour, detect.Nobody, detect.Indeterminate:
		return true
	}
	return false
}

// maxPoints bounds an incident's picture: the newest are kept.
const maxPoints = 512

// draw starts the picture with the window as the detector has it.
func (inc *Incident) draw(victim []detect.Point, suspects []detect.Suspect, window func(sample.TaskKey) []detect.Point) {
	for _, p := range victim {
		inc.Times = append(inc.Times, p.At)
		inc.VictimCost = append(inc.VictimCost, Value(p.Cost))
	}
	for _, s := range suspects[:min(len(suspects), 5)] {
		inc.watch(s.Task, window(s.Key))
	}
}

// watch adds a suspect to the picture.
func (inc *Incident) watch(t sample.Task, history []detect.Point) {
	for _, k := range inc.watched {
		if k == t.Key {
			return
		}
	}
	usage := make([]Value, len(inc.Times))
	for i, at := range inc.Times {
		usage[i] = Value(math.NaN())
		for _, p := range history {
			if p.At == at {
				usage[i] = Value(p.Pressure)
			}
		}
	}
	inc.watched = append(inc.watched, t.Key)
	inc.Usage = append(inc.Usage, Track{Task: t.Name, Usage: usage})
}

// extend adds an interval to the picture.
func (inc *Incident) extend(at sample.Millis, cost float64, usage func(sample.TaskKey) float64) {
	if n := len(inc.Times); n > 0 && inc.Times[n-1] >= at {
		return
	}
	drop := 0
	if len(inc.Times) == maxPoints {
		drop = 1
	}
	inc.Times = append(inc.Times[drop:], at)
	inc.VictimCost = append(inc.VictimCost[drop:], Value(cost))
	for i := range inc.Usage {
		inc.Usage[i].Usage = append(inc.Usage[i].Usage[drop:], Value(usage(inc.watched[i])))
	}
}
