// Package incident defines the written form of an incident: the JSON that agents log and
// send to the server, and that the programs print. Field names do not change: logs of
// older agents are read, and other people's tools read these.
package incident

import (
	"encoding/json"
	"slices"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Value is a number that may be missing: NaN is null in JSON.
type Value = stat.Float

// Round is one attempt to help the victim.
type Round = plan.Round

// Track is one task's line in an incident's chart.
type Track = pipeline.Track

// Profile is a link to a profile of a task.
type Profile = pipeline.Profile

// Record is an incident as of Updated, and its chart.
type Record pipeline.Change

// UnmarshalJSON implements json.Unmarshaler. Rounds that are null are left out: no agent writes
// them, but a document may come from a machine whose root lies.
func (r *Record) UnmarshalJSON(text []byte) error {
	type plain Record
	if err := json.Unmarshal(text, (*plain)(r)); err != nil {
		return err
	}
	r.Rounds = slices.DeleteFunc(r.Rounds, func(x *Round) bool { return x == nil })
	return nil
}

// Named are the antagonists that the incident named, ordered by their first naming. Logs
// of older agents contain only the last analysis, and suspects without levels (Listed).
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

// Listed are all suspects that the incident lists, each once: those that it named, then the
// others of its strongest and of its latest analysis, which have no times. One that an agent
// without levels named is likely, and possible if the last judged cap on it did not help.
func (r *Record) Listed() (all []plan.Finding) {
	seen := map[sample.TaskName]bool{} // a machine may list any number
	add := func(f plan.Finding) {
		if !seen[f.Suspect.Name] {
			seen[f.Suspect.Name], all = true, append(all, f)
		}
	}
	for _, f := range r.Named() {
		if f.Suspect.Level == detect.None {
			f.Suspect.Level = detect.Likely
			if r.cleared(f.Suspect.Name) {
				f.Suspect.Level = detect.Possible
			}
		}
		add(f)
	}
	for _, list := range [...][]detect.Suspect{r.Suspects, r.Now().Suspects} {
		for _, s := range list {
			add(plan.Finding{Suspect: s})
		}
	}
	return all
}

// cleared reports whether the last judged cap on a task did not help.
func (r *Record) cleared(task sample.TaskName) (cleared bool) {
	for _, x := range r.Rounds {
		for _, c := range x.Tasks() {
			if len(x.With) == 0 && c.Suspect.Name == task && x.Judged() {
				cleared = x.Outcome != plan.TruePositive
			}
		}
	}
	return cleared
}

// Ranks are the suspects' places, from 1, in the strongest analysis, else in the latest.
func (r *Record) Ranks() map[sample.TaskName]int32 {
	ranks := map[sample.TaskName]int32{}
	for _, list := range [...][]detect.Suspect{r.Now().Suspects, r.Suspects} {
		for i := len(list) - 1; i >= 0; i-- {
			ranks[list[i].Name] = int32(i + 1)
		}
	}
	return ranks
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

// End closes an incident that its agent left open. What it found stays. It is the newest state, also if the
// clock was set back since.
func (r *Record) End(now sample.Millis, why string) {
	now = max(now, r.Updated)
	r.Closed, r.Updated, r.NotDone = now, now, why
	for _, x := range r.Rounds {
		if x.Ended == 0 {
			x.Ended, x.Outcome = now, plan.NotMeasured
			r.Outcome = x.Outcome
		}
	}
}
