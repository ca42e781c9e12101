package plan

import (
	"encoding/json"
	"math"
	"slices"

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

// Round is one attempt to help the victim: one or more tasks are capped, and judged together.
type Round struct {
	ID string `json:"id"` // of the cap
	// Capped is the capped task, With are those of its group that were capped with it. Tasks
	// lists all of them.
	Capped
	With  []Capped      `json:"with,omitempty"`
	From  sample.Millis `json:"from"`
	Until sample.Millis `json:"until"`
	Ended sample.Millis `json:"ended,omitempty"` // 0 while it lasts
	By    string        `json:"by"`              // "quell" or the operator
	Why   string        `json:"why,omitempty"`
	// Trial: the suspect was capped to find out whether it is the antagonist.
	Trial bool `json:"trial,omitempty"`
	// Feedback: Rate followed the victim's cost. It is the last rate and was changed Adjusted times.
	Feedback bool `json:"feedback,omitempty"`
	Adjusted int  `json:"adjusted,omitempty"`
	// CostBefore is the victim's mean cost in the anomaly before the cap, CostUnder that
	// under it without the first sample, both over intervals of one kind (Planner.before),
	// RelativeCost their ratio; NaN if they are not known.
	CostBefore   stat.Float `json:"cost_before"`
	CostUnder    stat.Float `json:"cost_under"`
	RelativeCost stat.Float `json:"relative_cost"`
	Samples      int64      `json:"samples"` // number of samples in CostUnder
	// MissesBefore and MissesUnder are the victim's mean misses of the last-level cache per
	// instruction in the same intervals; NaN if they were not counted.
	MissesBefore stat.Float `json:"misses_before"`
	MissesUnder  stat.Float `json:"misses_under"`
	Outcome      Outcome    `json:"outcome,omitempty"`
}

// Capped is a task of a round with its limit and what the limit took from it.
type Capped struct {
	Suspect     sample.Task `json:"suspect"`
	Correlation float64     `json:"correlation"`   // when it was capped
	Rate        float64     `json:"rate"`          // CPU-s/s; 0 if IO or Net was the limit
	IO          IORate      `json:"io,omitzero"`   // for each disk that it shares with the victim
	Net         uint64      `json:"net,omitempty"` // bytes/s that it sent, if those were limited
	// UsageBefore and UsageUnder are its mean pressure, in the unit of the signal's pressure, in
	// the intervals of the round's CostBefore and CostUnder; NaN if there were none.
	UsageBefore stat.Float `json:"usage_before"`
	UsageUnder  stat.Float `json:"usage_under"`
}

// Tasks lists the round's capped tasks. What judges and stores a round goes by these.
func (r *Round) Tasks() []*Capped {
	all := make([]*Capped, 0, 1+len(r.With))
	all = append(all, &r.Capped)
	for i := range r.With {
		all = append(all, &r.With[i])
	}
	return all
}

// Names lists the round's tasks as in a sentence.
func (r *Round) Names() string {
	var names []string
	for _, c := range r.Tasks() {
		names = append(names, c.Suspect.Name.String())
	}
	return list(names)
}

// Has reports whether a task is one of the round's.
func (r *Round) Has(k sample.TaskKey) bool {
	return slices.ContainsFunc(r.Tasks(), func(c *Capped) bool { return c.Suspect.Key == k })
}

// alone reports whether the task is the round's only one, so that its result is the task's.
func (r *Round) alone(k sample.TaskKey) bool { return len(r.With) == 0 && r.Suspect.Key == k }

// Judged reports whether the victim's cost gave a result for the cap.
func (r *Round) Judged() bool { return r.Outcome == TruePositive || r.didNotHelp() }

// didNotHelp reports whether the cap did not help.
func (r *Round) didNotHelp() bool { return r.Outcome == Noise || r.Outcome == FalsePositive }

// UnmarshalJSON implements json.Unmarshaler. What an older agent did not write is not known, and not 0.
func (r *Round) UnmarshalJSON(text []byte) error {
	type plain Round
	unknown := stat.Float(math.NaN())
	v := plain{Capped: Capped{UsageBefore: unknown, UsageUnder: unknown},
		CostBefore: unknown, CostUnder: unknown, RelativeCost: unknown, MissesBefore: unknown, MissesUnder: unknown}
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	*r = Round(v)
	return nil
}

// round is a Round as the planner keeps it.
type round struct {
	Round
	caps       []*CapState // of its tasks, in their order
	applied    bool        // all of them
	conditions []condition // the first is that when it began
	seen       int         // intervals under the cap in which the victim's cost counted
	outliers   int
	failing    bool   // enough outliers under it for another round
	slack      int    // intervals in a row without binding, of a cap that may end early
	curve      *curve // of a feedback cap
	// ofGroup: it is of a group. left is the member that it leaves out, if any, leftUsage what that used.
	ofGroup   bool
	left      *member
	leftUsage stat.Moments
	// analysis is the latest analysis when the cap began.
	analysis *Analysis
}

// means are of one side of a comparison.
type means struct {
	cost, misses stat.Moments
	usage        []stat.Moments // of the round's tasks, in their order
}

// add adds an interval of a round of these tasks. Misses of 0 were not counted, and a usage
// of NaN was not read.
func (m *means) add(cost, misses float64, tasks []*Capped, usage func(sample.TaskKey) float64) {
	m.cost.Add(cost, 1)
	if misses > 0 {
		m.misses.Add(misses, 1)
	}
	if m.usage == nil {
		m.usage = make([]stat.Moments, len(tasks))
	}
	for i, c := range tasks {
		if u := usage(c.Suspect.Key); !math.IsNaN(u) {
			m.usage[i].Add(u, 1)
		}
	}
}

// usageOf is the mean usage of the i-th task.
func (m *means) usageOf(i int) stat.Float {
	if m.usage == nil {
		return stat.Float(math.NaN())
	}
	return meanOf(&m.usage[i])
}

func meanOf(m *stat.Moments) stat.Float {
	if m.N == 0 {
		return stat.Float(math.NaN())
	}
	return stat.Float(m.Mean)
}

// maxRounds bounds what an incident keeps: one that never ends gets a cap every few minutes, and its record
// has to fit into a message. There are at most 103 trials (Policy.Trials, group.go).
const maxRounds = 128

// forgetRounds forgets the oldest rounds that ended if there are too many: first those that do not decide
// what follows. A cap in vain rules out another one, and trials are counted.
func (inc *incident) forgetRounds() {
	for _, may := range []func(*round) bool{
		func(r *round) bool { return r.Ended != 0 && !r.didNotHelp() && !r.Trial },
		func(r *round) bool { return r.Ended != 0 && !r.Trial },
		func(r *round) bool { return r.Ended != 0 },
	} {
		for len(inc.rounds) > maxRounds {
			i := slices.IndexFunc(inc.rounds, may)
			if i < 0 {
				break
			}
			inc.rounds = slices.Delete(inc.rounds, i, i+1)
		}
	}
}

// condition is a set of other tasks that were limited, with what the victim cost while
// exactly these were: before the round and under its cap.
type condition struct {
	others        []sample.TaskKey // sorted
	before, under means
	bad           bool // a bad interval of the newest anomaly is in before
}

// maxConditions bounds a round's memory; caps change rarely within a window.
const maxConditions = 16

// before finds what the victim cost, and the suspect used, before a round that begins now. The
// same intervals count before the cap and under it: those in which the victim's cost counts,
// good or bad, under one condition. Else the limit of another task, which began or ended,
// would be taken for the effect of this one. Before the cap they are the intervals of the
// anomaly, from its first bad one on; the incident's earlier ones too, if a condition has no bad
// one there, since another cap has just ended, or if the suspect itself was limited in the
// anomaly: what is between a trial and the cap that follows is not yet the harm.
func (p *Planner) before(inc *incident, r *round, window func(sample.TaskKey) []detect.Point) {
	type interval struct {
		task sample.TaskKey
		at   sample.Millis
	}
	used := map[interval]float64{}
	for _, c := range r.Tasks() {
		for _, u := range window(c.Suspect.Key) {
			used[interval{c.Suspect.Key, u.At}] = u.Pressure
		}
	}
	r.conditions = []condition{{others: p.limitedNow()}}
	tried := false
	for _, v := range slices.Backward(window(inc.Victim.Key)) {
		limited := p.limitedIn(inc.Signal, v.At)
		own := len(r.others(limited)) < len(limited)
		tried = tried || own && v.At >= inc.first
		if math.IsNaN(v.Cost) || v.At < inc.Began || own {
			continue
		}
		c := r.condition(limited)
		if c == nil && len(r.conditions) < maxConditions {
			r.conditions = append(r.conditions, condition{others: limited})
			c = &r.conditions[len(r.conditions)-1]
		}
		if c == nil || v.At < inc.first && c.bad && !tried {
			continue
		}
		c.before.add(v.Cost, v.Misses, r.Tasks(), func(k sample.TaskKey) float64 {
			if usage, ok := used[interval{k, v.At}]; ok {
				return usage
			}
			return math.NaN()
		})
		c.bad = c.bad || v.At >= inc.first && v.Cost > inc.latest.Threshold
	}
	r.compare()
}

// condition returns that with these others, nil if there is none.
func (r *round) condition(others []sample.TaskKey) *condition {
	i := slices.IndexFunc(r.conditions, func(c condition) bool { return slices.Equal(c.others, others) })
	if i < 0 {
		return nil
	}
	return &r.conditions[i]
}

// compare sets the round's figures from the condition that has most samples under the cap, of
// those with a sample before it.
func (r *round) compare() {
	best := &r.conditions[0]
	for i := range r.conditions {
		if c := &r.conditions[i]; c.before.cost.N > 0 && (best.before.cost.N == 0 || c.under.cost.N > best.under.cost.N) {
			best = c
		}
	}
	before, under := &best.before, &best.under
	r.CostBefore, r.MissesBefore = meanOf(&before.cost), meanOf(&before.misses)
	r.CostUnder, r.MissesUnder = meanOf(&under.cost), meanOf(&under.misses)
	for i, c := range r.Tasks() {
		c.UsageBefore, c.UsageUnder = before.usageOf(i), under.usageOf(i)
	}
	r.Samples, r.RelativeCost = under.cost.N, stat.Float(math.NaN())
	if r.CostBefore > 0 {
		r.RelativeCost = r.CostUnder / r.CostBefore
	}
}

// addSample adds an interval in which the victim's cost counted to the rounds whose caps are
// in force. A round's first sample under its cap is partly from before it and is left out
// (CPI², section 7.2). usage returns a task's pressure, NaN if there is none.
func (inc *incident) addSample(at sample.Millis, cost, misses float64, outlier bool, enough int, limited []sample.TaskKey, usage func(sample.TaskKey) float64) {
	newest := inc.newest()
	for _, r := range inc.rounds {
		if r.Ended != 0 || !r.applied || at <= r.From {
			continue
		}
		if r.seen++; r.seen == 1 {
			continue
		}
		if r == newest && outlier {
			r.outliers++
			r.failing = r.outliers >= enough
		}
		if r.left != nil {
			if u := usage(r.left.task.Key); !math.IsNaN(u) {
				r.leftUsage.Add(u, 1)
			}
		}
		if c := r.condition(r.others(limited)); c != nil {
			c.under.add(cost, misses, r.Tasks(), usage)
			r.compare()
		}
	}
}

// limits are the tasks that were limited in the intervals of a signal that ended between
// from and to, both included.
type limits struct {
	from, to sample.Millis
	tasks    []sample.TaskKey // sorted
}

// maxLimits bounds the memory of a signal: the newest are kept. An analysis looks back over
// a window in which caps rarely change.
const maxLimits = 64

// noteLimits records the tasks that are limited in an interval: those with the flag, and
// those with a cap in force that were not read.
func (p *Planner) noteLimits(sig sample.SignalName, at sample.Millis, readings []detect.Reading) []sample.TaskKey {
	var now []sample.TaskKey
	for i := range readings {
		if readings[i].Flags&sample.Capped != 0 {
			now = append(now, readings[i].Task.Key)
		}
	}
	for _, c := range p.caps {
		if c.Applied && c.From < at && !slices.Contains(now, c.Task.Key) {
			now = append(now, c.Task.Key)
		}
	}
	slices.SortFunc(now, sample.TaskKey.Compare)
	all := p.limits[sig]
	if n := len(all); n > 0 && slices.Equal(all[n-1].tasks, now) {
		all[n-1].to = at
		return now
	}
	if len(all) == 0 && len(now) == 0 {
		return now
	}
	p.limits[sig] = append(all[max(0, len(all)+1-maxLimits):], limits{at, at, now})
	return now
}

// limitedIn lists the tasks that were limited in the interval of a signal that ended then.
func (p *Planner) limitedIn(sig sample.SignalName, at sample.Millis) []sample.TaskKey {
	for _, l := range slices.Backward(p.limits[sig]) {
		if l.from <= at && at <= l.to {
			return l.tasks
		}
	}
	return nil
}

// limitedNow lists the tasks with a cap that is in force or requested.
func (p *Planner) limitedNow() (all []sample.TaskKey) {
	for _, c := range p.caps {
		if !c.ended {
			all = append(all, c.Task.Key)
		}
	}
	slices.SortFunc(all, sample.TaskKey.Compare)
	return all
}

// others returns the keys that are not of the round's tasks.
func (r *Round) others(all []sample.TaskKey) []sample.TaskKey {
	return slices.DeleteFunc(slices.Clone(all), r.Has)
}
