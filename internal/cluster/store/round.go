package store

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Round is a capped task of a round of an incident when its agent reported it: the row with the newest Updated is its
// current state. Tasks that were capped together have a row each, with the same ID and the same costs.
type Round struct {
	Machine     string   `parquet:"machine,dict"`
	Incident    string   `parquet:"incident"`
	ID          string   `parquet:"id"`
	Updated     int64    `parquet:"updated,timestamp(millisecond)"`
	Rule        string   `parquet:"rule,dict"`
	Signal      string   `parquet:"signal,dict"`
	VictimJob   string   `parquet:"victim_job,dict"`
	VictimTask  string   `parquet:"victim_task,dict"`
	VictimClass string   `parquet:"victim_class,dict"`
	SpecMean    float64  `parquet:"spec_mean"`
	SpecStdDev  float64  `parquet:"spec_stddev"`
	Job         string   `parquet:"job,dict"` // of the capped task
	Task        string   `parquet:"task,dict"`
	Class       string   `parquet:"class,dict"`
	Tasks       int32    `parquet:"tasks"` // capped together
	Trial       bool     `parquet:"trial"`
	By          string   `parquet:"by,dict"` // "quell" or the operator
	Why         string   `parquet:"why"`
	Began       int64    `parquet:"began,timestamp(millisecond)"`
	Until       int64    `parquet:"until,timestamp(millisecond)"` // its lease
	Ended       *int64   `parquet:"ended,timestamp(millisecond)"` // null: it lasts
	Rate        *float64 `parquet:"rate"`                         // CPU-s/s; null: something else was limited
	IOOps       *int64   `parquet:"io_ops"`                       // requests/s, for each disk
	IOBytes     *int64   `parquet:"io_bytes"`                     // bytes/s, for each disk
	NetBytes    *int64   `parquet:"net_bytes"`                    // bytes/s sent
	Correlation float64  `parquet:"correlation"`                  // when it was capped
	// The victim's mean cost before the cap and under it, and their ratio; null: not measured.
	CostBefore   *float64 `parquet:"cost_before"`
	CostUnder    *float64 `parquet:"cost_under"`
	RelativeCost *float64 `parquet:"relative_cost"`
	Samples      int64    `parquet:"samples"` // in cost_under
	// The capped task's mean pressure in the same intervals, in the unit of the signal's
	// pressure, and the victim's misses of the last-level cache per instruction.
	UsageBefore  *float64 `parquet:"usage_before"`
	UsageUnder   *float64 `parquet:"usage_under"`
	MissesBefore *float64 `parquet:"misses_before"`
	MissesUnder  *float64 `parquet:"misses_under"`
	Outcome      string   `parquet:"outcome,dict"` // "" while it lasts
}

// Suspect is what an incident has found on one suspect when its agent reported it: the row
// with the newest Updated is the current state.
type Suspect struct {
	Machine     string `parquet:"machine,dict"`
	Incident    string `parquet:"incident"`
	Updated     int64  `parquet:"updated,timestamp(millisecond)"`
	Analysed    *int64 `parquet:"analysed,timestamp(millisecond)"` // the latest analysis; null: not known
	Rule        string `parquet:"rule,dict"`
	Signal      string `parquet:"signal,dict"`
	VictimJob   string `parquet:"victim_job,dict"`
	VictimTask  string `parquet:"victim_task,dict"`
	VictimClass string `parquet:"victim_class,dict"`
	Job         string `parquet:"job,dict"` // of the suspect
	Task        string `parquet:"task,dict"`
	Class       string `parquet:"class,dict"`
	// Rank is its place, from 1, in the incident's strongest analysis, else in its latest;
	// null: neither lists it any more.
	Rank *int32 `parquet:"rank"`
	// The first and the last analysis that named it; null: none did.
	NamedFrom  *int64 `parquet:"named_from,timestamp(millisecond)"`
	NamedUntil *int64 `parquet:"named_until,timestamp(millisecond)"`
	// The strongest grounds on which it was named, else those in that analysis, and what caps
	// on it have shown since. Figures that the method does not compute are null.
	Level       string   `parquet:"level,dict"`
	Method      string   `parquet:"method,dict"`
	Probability *float64 `parquet:"probability"`
	Share       *float64 `parquet:"share"` // of the time in which the victim waited or was served
	UsualShare  *float64 `parquet:"usual_share"`
	FairShare   *float64 `parquet:"fair_share"`
	Displaced   *float64 `parquet:"displaced"`
	Correlation float64  `parquet:"correlation"`
	Usage       float64  `parquet:"usage"` // mean pressure over the window, in the unit of the signal's pressure
	CoVictim    bool     `parquet:"co_victim"`
	Excluded    string   `parquet:"excluded,dict"` // why it cannot be the antagonist
	Why         string   `parquet:"why"`
}

// AddIncident adds the rows of an incident in its current state, in all tables that have any.
func (b *Batch) AddIncident(inc *incident.Record) error {
	row, err := IncidentOf(inc)
	if err != nil {
		return err
	}
	b.Incidents = append(b.Incidents, row)
	b.Rounds, b.Suspects = append(b.Rounds, RoundsOf(inc)...), append(b.Suspects, SuspectsOf(inc)...)
	return nil
}

// RoundsOf returns the rows of an incident's rounds in their current state.
func RoundsOf(inc *incident.Record) (all []Round) {
	victim := inc.Victim.Name.Text() // once: quoted it is a new string, of 16 KB at most
	for _, r := range inc.Rounds {
		of := Round{Machine: inc.Machine, Incident: inc.ID, ID: r.ID, Updated: int64(inc.Updated), Rule: string(inc.Rule), Signal: string(inc.Signal),
			VictimJob: string(inc.Victim.Job), VictimTask: victim, VictimClass: inc.Victim.Class.String(), SpecMean: inc.SpecMean, SpecStdDev: inc.SpecStdDev,
			Tasks: int32(len(r.Tasks())), Trial: r.Trial, By: r.By, Why: r.Why, Began: int64(r.From), Until: int64(r.Until), Ended: instant(r.Ended),
			CostBefore: known(r.CostBefore), CostUnder: known(r.CostUnder), RelativeCost: known(r.RelativeCost), Samples: r.Samples,
			MissesBefore: known(r.MissesBefore), MissesUnder: known(r.MissesUnder), Outcome: string(r.Outcome)}
		for _, c := range r.Tasks() {
			row := of
			row.Job, row.Task, row.Class, row.Correlation = string(c.Suspect.Job), c.Suspect.Name.Text(), c.Suspect.Class.String(), c.Correlation
			row.UsageBefore, row.UsageUnder = known(c.UsageBefore), known(c.UsageUnder)
			switch {
			case !c.IO.IsZero():
				row.IOOps, row.IOBytes = limit(c.IO.Ops), limit(c.IO.Bytes)
			case c.Net > 0:
				row.NetBytes = limit(c.Net)
			default:
				row.Rate = &c.Rate
			}
			all = append(all, row)
		}
	}
	return all
}

// SuspectsOf returns a row for each suspect of an incident in its current state, those that it named first.
func SuspectsOf(inc *incident.Record) (all []Suspect) {
	ranks, victim := inc.Ranks(), inc.Victim.Name.Text()
	for _, f := range inc.Listed() {
		s := &f.Suspect
		row := Suspect{Machine: inc.Machine, Incident: inc.ID, Updated: int64(inc.Updated), Analysed: instant(inc.Now().Analysed), Rule: string(inc.Rule), Signal: string(inc.Signal),
			VictimJob: string(inc.Victim.Job), VictimTask: victim, VictimClass: inc.Victim.Class.String(),
			Job: string(s.Job), Task: s.Name.Text(), Class: s.Class.String(), NamedFrom: instant(f.From), NamedUntil: instant(f.Until),
			Level: s.Level.String(), Method: string(s.Basis), Probability: positive(s.Probability), Correlation: s.Correlation, Usage: s.Usage,
			CoVictim: s.CoVictim, Excluded: s.Excluded, Why: s.Why}
		if rank := ranks[s.Name]; rank > 0 {
			row.Rank = &rank
		}
		if s.Share+s.UsualShare+s.FairShare+s.Displaced > 0 { // there are accounts
			row.Share, row.UsualShare, row.FairShare, row.Displaced = &s.Share, &s.UsualShare, positive(s.FairShare), &s.Displaced
		}
		all = append(all, row)
	}
	return all
}

// instant is a time, null for 0.
func instant(at sample.Millis) *int64 {
	if at == 0 {
		return nil
	}
	ms := int64(at)
	return &ms
}

// known is a number, null if it is not one.
func known(f incident.Value) *float64 {
	v := float64(f)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// positive is a number, null for 0: it was not computed.
func positive(v float64) *float64 {
	if v == 0 {
		return nil
	}
	return &v
}

// limit is a rate, null for 0: it was not limited.
func limit(n uint64) *int64 {
	if n == 0 {
		return nil
	}
	v := int64(min(n, math.MaxInt64))
	return &v
}

// record returns the incident in a row.
func (r *Incident) record() (*incident.Record, error) {
	var inc incident.Record
	if err := json.Unmarshal([]byte(r.Doc), &inc); err != nil {
		return nil, fmt.Errorf("read incident %s of %s: %w", r.ID, r.Machine, err)
	}
	// The columns were checked when it was received, and moved if they lay in the future.
	inc.Machine, inc.ID, inc.Updated = r.Machine, r.ID, sample.Millis(r.Updated)
	return &inc, nil
}
