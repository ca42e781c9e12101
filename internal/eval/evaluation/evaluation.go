package evaluation

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Band is a victim's priority band (section 7.2).
type Band string

// The bands. The paper's are production and non-production jobs; here those are
// latency-sensitive victims and all others.
const (
	Production    Band = "production"
	NonProduction Band = "non-production"
)

// Bands returns both.
func Bands() []Band { return []Band{Production, NonProduction} }

func bandOf(victim *sample.Task) Band { return bandOfClass(victim.Class.String()) }

// Evaluation collects incidents. The zero value has none.
type Evaluation struct {
	found  []found
	rounds []measuredCap
	pairs  map[Pair]*tally
	states []*incident.Record // that Settle adds; nil: added
	places map[key]int        // in states
	// Days is the number of machine-days that the incidents cover, 0 if not known.
	Days float64
	// Right of Accusations named a task that hurt the victim, if there are labels;
	// otherwise Accusations is 0.
	Right, Accusations int
	// cluster has the figures from samples; nil if the evaluation is not OfCluster.
	cluster *Cluster
}

// Pair is a victim's job and its antagonist's job.
type Pair struct {
	Victim     sample.JobName `json:"victim"`
	Antagonist sample.JobName `json:"antagonist"`
}

// tally holds the observations on a pair.
type tally struct {
	accused  int
	outcomes map[plan.Outcome]int
	relative []float64
}

func (e *Evaluation) pair(victim, antagonist sample.JobName) *tally {
	if e.pairs == nil {
		e.pairs = map[Pair]*tally{}
	}
	p := Pair{victim, antagonist}
	if e.pairs[p] == nil {
		e.pairs[p] = &tally{outcomes: map[plan.Outcome]int{}}
	}
	return e.pairs[p]
}

// cappedWithoutEffect reports whether a suspect was capped without effect on the victim.
func cappedWithoutEffect(inc *incident.Record, s *detect.Suspect) bool {
	return slices.ContainsFunc(inc.Rounds, func(r *incident.Round) bool {
		return len(r.With) == 0 && r.Suspect.Key == s.Key && (r.Outcome == plan.Noise || r.Outcome == plan.FalsePositive)
	})
}

// found is an incident whose cause may be a neighbour.
type found struct {
	band        Band
	busy        float64 // CPU-s/s of all tasks; NaN if not known
	cpus        float64 // of the machine; 0 or NaN if not known
	identified  bool
	correlation float64 // of the best antagonist, otherwise of the best suspect
	degradation float64 // cost ÷ mean of the spec
}

// utilisation is the share of the machine's CPUs that all tasks use; NaN if not known.
func (f *found) utilisation() float64 {
	if !(f.cpus > 0) {
		return math.NaN()
	}
	return f.busy / f.cpus
}

// measuredCap is a cap whose effect was measured.
type measuredCap struct {
	band        Band
	correlation float64
	sigmas      float64 // cost before it, in σ over the spec's mean
	degradation float64 // cost before it ÷ mean
	relative    float64 // cost under it ÷ cost before it
	misses      float64 // misses per instruction under it ÷ before it; NaN if not known
	outcome     plan.Outcome
}

func (c *measuredCap) helped() bool { return c.outcome == plan.TruePositive }

// AddState takes a state of an incident: an agent's log has each. One that is closed is final and is added at
// once; of others, Settle adds the newest. An incident without an ID is another one each time.
func (e *Evaluation) AddState(inc *incident.Record) {
	if inc.ID == "" {
		e.Add(inc)
		return
	}
	inc.Chart = incident.Record{}.Chart // most of its memory
	if e.places == nil {
		e.places = map[key]int{}
	}
	k := key{inc.Machine, inc.ID}
	i, again := e.places[k]
	if !again {
		i = len(e.states)
		e.places[k], e.states = i, append(e.states, inc)
	}
	switch before := e.states[i]; {
	case before == nil: // its final state is added
	case inc.Closed != 0:
		e.Add(inc)
		e.states[i] = nil
	case inc.Updated >= before.Updated:
		e.states[i] = inc
	}
}

// Settle adds the incidents of AddState that are open. What comes next is of another run, in which another
// incident may have the same ID.
func (e *Evaluation) Settle() {
	for _, inc := range e.states {
		if inc != nil {
			e.Add(inc)
		}
	}
	e.states, e.places = nil, nil
}

// Add adds an incident in its final state. Effects of the victim on itself are left out,
// and so are trials, since they test suspects that are not accused yet.
func (e *Evaluation) Add(inc *incident.Record) {
	if !inc.Kind.MayBeANeighbour() || !(inc.SpecMean > 0) {
		return
	}
	now := inc.Now()
	if len(inc.Rounds) > 0 && now.Kind != detect.Neighbour {
		now = &inc.Analysis
	}
	f := found{band: bandOf(&inc.Victim), busy: math.NaN(), cpus: float64(inc.CPUs), identified: inc.Accused != 0, correlation: math.NaN(), degradation: inc.Now().Cost / inc.SpecMean}
	if inc.Busy > 0 {
		f.busy = inc.Busy
	}
	for i := range now.Suspects {
		// A suspect that was capped in vain is ranked lower now, and was the best before.
		if s := &now.Suspects[i]; s.Excluded == "" && (!(s.Correlation <= f.correlation) && cappedWithoutEffect(inc, s) || math.IsNaN(f.correlation)) {
			f.correlation = s.Correlation
		}
	}
	e.found = append(e.found, f)
	if s := inc.Antagonist(); f.identified && s != nil && s.Job != "" { // usage outside tasks has no job
		if now.Antagonists > 0 && len(now.Suspects) > 0 { // a machine whose root lies may name none
			s = &now.Suspects[0]
		}
		e.pair(inc.Victim.Job, s.Job).accused++
	}
	for _, r := range inc.Rounds {
		e.addRound(f.band, inc.Victim.Job, inc.SpecMean, inc.SpecStdDev, r)
	}
}

// addRound adds a cap for a victim whose spec has the given mean and standard deviation, and
// reports whether its effect was measured. A cap on several tasks says nothing of one of them.
func (e *Evaluation) addRound(band Band, victim sample.JobName, mean, dev float64, r *plan.Round) bool {
	switch r.Outcome {
	case plan.TruePositive, plan.FalsePositive, plan.Noise:
	default:
		return false
	}
	before, under := float64(r.CostBefore), float64(r.CostUnder)
	if r.Trial || len(r.With) > 0 || !(before > 0) || math.IsNaN(under) {
		return false
	}
	t := e.pair(victim, r.Suspect.Job)
	t.outcomes[r.Outcome]++
	t.relative = append(t.relative, under/before)
	e.rounds = append(e.rounds, measuredCap{band: band, correlation: r.Correlation, sigmas: (before - mean) / dev,
		degradation: before / mean, relative: under / before, misses: math.NaN(), outcome: r.Outcome})
	return true
}
