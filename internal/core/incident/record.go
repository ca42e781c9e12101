// Package incident defines the written form of an incident: the JSON that agents log and
// send to the server, and that the programs print. Field names do not change: logs of
// older agents are read, and other people's tools read these.
package incident

import (
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Value is a number that may be missing: NaN is null in JSON.
type Value = stat.Float

// Round is a plan.Round.
type Round struct {
	ID           string        `json:"id"` // of the cap
	Suspect      sample.Task   `json:"suspect"`
	Correlation  float64       `json:"correlation"`
	Rate         float64       `json:"rate"`          // CPU-s/s; 0 if IO or Net was the limit
	IO           plan.IORate   `json:"io,omitzero"`   // for each disk that it shares with the victim
	Net          uint64        `json:"net,omitempty"` // bytes/s that it sent, if those were limited
	From         sample.Millis `json:"from"`
	Until        sample.Millis `json:"until"`
	Ended        sample.Millis `json:"ended,omitempty"`
	By           string        `json:"by"` // "quell" or the operator
	Why          string        `json:"why,omitempty"`
	Trial        bool          `json:"trial,omitempty"`
	Feedback     bool          `json:"feedback,omitempty"`
	Adjusted     int           `json:"adjusted,omitempty"`
	CostBefore   Value         `json:"cost_before"`
	CostUnder    Value         `json:"cost_under"`
	RelativeCost Value         `json:"relative_cost"`
	Samples      int64         `json:"samples"` // number of samples in CostUnder
	Outcome      plan.Outcome  `json:"outcome,omitempty"`
}

// Limit is what the round limited its suspect to, for people.
func (r *Round) Limit() string {
	return (&plan.Round{Rate: r.Rate, IO: r.IO, Net: r.Net}).Limit()
}

// Track is one task's line in an incident's chart.
type Track struct {
	Task  sample.TaskName `json:"task"`
	Usage []Value         `json:"usage"` // in the signal's unit, one per Record.Times; null where there was none
}

// Record is an incident as of Updated: a plan.Incident, whose fields are described there,
// and its chart. Its strongest analysis is in Analysed, Kind, Change, HeldBy, Threshold,
// Cost, Bad, Pairs, Suspects, Antagonists and Reason.
type Record struct {
	ID          string            `json:"id"`
	Machine     string            `json:"machine"`
	Rule        detect.Method     `json:"rule"`
	Signal      sample.SignalName `json:"signal"`
	Variant     string            `json:"variant"`
	Analysed    sample.Millis     `json:"analysed,omitempty"` // when its strongest analysis was made
	Kind        detect.Kind       `json:"kind"`
	Victim      sample.Task       `json:"victim"`
	Change      detect.Change     `json:"change,omitempty"`
	Follows     bool              `json:"follows,omitempty"`
	HeldBy      string            `json:"held_by,omitempty"`
	Began       sample.Millis     `json:"began"`
	Opened      sample.Millis     `json:"opened"`
	Accused     sample.Millis     `json:"accused,omitempty"`
	Anomaly     sample.Millis     `json:"anomaly,omitempty"`
	Busy        float64           `json:"busy,omitempty"`
	Updated     sample.Millis     `json:"updated"`
	Closed      sample.Millis     `json:"closed,omitempty"`
	Mode        plan.Mode         `json:"mode"`
	SpecMean    float64           `json:"spec_mean"`
	SpecStdDev  float64           `json:"spec_stddev"`
	SpecOwn     bool              `json:"spec_own"`
	Threshold   float64           `json:"threshold"`
	Cost        float64           `json:"cost"`
	Bad         int               `json:"bad"`
	Pairs       int               `json:"pairs"`
	Suspects    []detect.Suspect  `json:"suspects"`
	Antagonists int               `json:"antagonists"`
	Reason      string            `json:"reason,omitempty"`
	Latest      *plan.Analysis    `json:"latest,omitempty"`
	Findings    []plan.Finding    `json:"findings,omitempty"`
	Rounds      []*Round          `json:"rounds"`
	Outcome     plan.Outcome      `json:"outcome,omitempty"`
	NotDone     string            `json:"not_done,omitempty"`
	Advice      string            `json:"advice,omitempty"`
	Escalation  *plan.Escalation  `json:"escalation,omitempty"`
	// The chart: the victim's cost and the main suspects' usage over time.
	Times      []sample.Millis `json:"times"`
	VictimCost []Value         `json:"victim_cost"` // one per Times; null where not judged
	Usage      []Track         `json:"suspect_usage"`
}

// FromPlan is the record of an incident with its chart.
func FromPlan(inc *plan.Incident, chart *pipeline.Chart) *Record {
	r := &Record{ID: inc.ID, Machine: inc.Machine, Rule: inc.Rule, Signal: inc.Signal, Variant: inc.Variant, Analysed: inc.Analysed, Kind: inc.Kind,
		Victim: inc.Victim, Change: inc.Change, Follows: inc.Follows, HeldBy: inc.HeldBy,
		Began: inc.Began, Opened: inc.Opened, Accused: inc.Accused, Anomaly: inc.Anomaly, Busy: inc.Busy,
		Updated: inc.Updated, Closed: inc.Closed, Mode: inc.Mode,
		SpecMean: inc.SpecMean, SpecStdDev: inc.SpecStdDev, SpecOwn: inc.SpecOwn, Threshold: inc.Threshold, Cost: inc.Cost,
		Bad: inc.Bad, Pairs: inc.Pairs, Suspects: inc.Suspects, Antagonists: inc.Antagonists, Rounds: make([]*Round, len(inc.Rounds)),
		Reason: inc.Reason, Latest: inc.Latest, Findings: inc.Findings,
		Outcome: inc.Outcome, NotDone: inc.NotDone, Advice: inc.Advice, Escalation: inc.Escalation,
		Times: chart.Times, VictimCost: values(chart.VictimCost)}
	for i := range inc.Rounds {
		r.Rounds[i] = roundOf(&inc.Rounds[i])
	}
	for _, t := range chart.Suspects {
		r.Usage = append(r.Usage, Track{t.Task, values(t.Pressure)})
	}
	return r
}

// Now is the latest analysis.
func (r *Record) Now() plan.Analysis {
	if r.Latest != nil {
		return *r.Latest
	}
	return r.Strongest()
}

// Strongest is the analysis in the record's own fields.
func (r *Record) Strongest() plan.Analysis {
	return plan.Analysis{Analysed: r.Analysed, Kind: r.Kind, Change: r.Change, HeldBy: r.HeldBy, Threshold: r.Threshold, Cost: r.Cost,
		Bad: r.Bad, Pairs: r.Pairs, Suspects: r.Suspects, Antagonists: r.Antagonists, Reason: r.Reason}
}

// Named are the antagonists that the incident named, ordered by their first naming. Logs
// of older agents contain only the last analysis.
func (r *Record) Named() []plan.Finding {
	if len(r.Findings) > 0 {
		return r.Findings
	}
	var all []plan.Finding
	for _, s := range r.Suspects[:min(max(r.Antagonists, 0), len(r.Suspects))] {
		all = append(all, plan.Finding{Suspect: s, From: r.Accused, Until: r.Updated})
	}
	return all
}

// Antagonist is the suspect that the incident names first, or named until a cap on it was
// in vain; nil if it named none.
func (r *Record) Antagonist() *detect.Suspect {
	if r.Antagonists > 0 && len(r.Suspects) > 0 {
		return &r.Suspects[0]
	}
	var best *detect.Suspect
	for i := range r.Findings {
		if s := &r.Findings[i].Suspect; best == nil || s.Level > best.Level {
			best = s
		}
	}
	return best
}

// Find returns a suspect as it was named, else as it is in the strongest analysis or the
// latest; nil if the incident does not list it.
func (r *Record) Find(t *sample.Task) *detect.Suspect {
	for i := range r.Findings {
		if s := &r.Findings[i].Suspect; s.Key == t.Key && s.Name == t.Name {
			return s
		}
	}
	for _, list := range [...][]detect.Suspect{r.Suspects, r.Now().Suspects} {
		for i := range list {
			if s := &list[i]; s.Key == t.Key && s.Name == t.Name {
				return s
			}
		}
	}
	return nil
}

// End closes an incident that its agent left open. What it found stays.
func (r *Record) End(now sample.Millis, why string) {
	r.Closed, r.Updated, r.NotDone = now, now, why
	for _, x := range r.Rounds {
		if x.Ended == 0 {
			x.Ended, x.Outcome = now, plan.NotMeasured
			r.Outcome = x.Outcome
		}
	}
}

func roundOf(r *plan.Round) *Round {
	return &Round{ID: r.ID, Suspect: r.Suspect, Correlation: r.Correlation, Rate: r.Rate, IO: r.IO, Net: r.Net,
		From: r.From, Until: r.Until, Ended: r.Ended, By: r.By, Why: r.Why, Trial: r.Trial, Feedback: r.Feedback, Adjusted: r.Adjusted,
		CostBefore: Value(r.CostBefore), CostUnder: Value(r.CostUnder), RelativeCost: Value(r.RelativeCost), Samples: r.Samples, Outcome: r.Outcome}
}

func values(all []float64) []Value {
	if all == nil {
		return nil
	}
	v := make([]Value, len(all))
	for i, x := range all {
		v[i] = Value(x)
	}
	return v
}
