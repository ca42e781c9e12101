package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// ActionKind is what an action does.
type ActionKind uint8

const (
	// Cap limits the task to Rate, IO or Net until Until.
	Cap ActionKind = iota
	// Uncap ends the cap with that ID.
	Uncap
	// Adjust changes the Rate of the cap with that ID, or sets a later end (Policy.MaxDuration).
	Adjust
)

// Action is an instruction to the enforcer.
type Action struct {
	Kind     ActionKind     `json:"-"`
	ID       string         `json:"id"` // of the cap
	Task     sample.Task    `json:"-"`
	Rate     float64        `json:"rate"`          // CPU-s/s; 0 if IO or Net is the limit
	IO       IORate         `json:"io,omitzero"`   // for each disk that the task shares with Victim
	Net      uint64         `json:"net,omitempty"` // bytes/s that it sends; 0 if something else is limited
	Until    sample.Millis  `json:"until"`
	By       string         `json:"by"` // "quell" or the operator
	Why      string         `json:"why,omitempty"`
	Incident string         `json:"incident,omitempty"` // ID, "" for an operator's cap outside any incident
	Victim   sample.TaskKey `json:"-"`                  // of the incident
}

// auto is the author of actions that no operator ordered.
const auto = "quell"

// CapState is a cap in force, or requested.
type CapState struct {
	Action
	From    sample.Millis `json:"from"`
	Applied bool          `json:"-"` // the enforcer confirmed it

	round    *round    // nil outside an incident
	incident *incident // nil outside an incident
	ended    bool      // an Uncap is under way
}

type incidentKey struct {
	signal sample.SignalName
	victim sample.TaskKey
	kind   detect.Kind // kinds that a neighbour may cause share one
}

func keyOf(s sample.SignalName, victim sample.TaskKey, kind detect.Kind) incidentKey {
	switch kind {
	case detect.Nobody, detect.Indeterminate, detect.PhaseChange:
		kind = detect.Neighbour
	}
	return incidentKey{s, victim, kind}
}

// Planner holds open incidents and caps.
type Planner struct {
	machine       string
	rule          detect.Method
	policy        Policy
	open          map[incidentKey]*incident
	ordered       []*incident                    // of inOrder
	victims       map[sample.TaskKey][]*incident // of open incidents: theirs, oldest first
	ids           map[string]*incident           // the open incidents
	freed         map[sample.TaskKey]bool        // those of incidents
	caps          map[string]*CapState
	seq           int
	busy          float64 // CPU-s/s of all tasks in the newest interval
	feedbackRates feedbackRates

	offenders map[sample.JobName]*Offender
	groups    map[incidentKey]*group
	// testimony is of the newest intervals of tasks that may be helped (witness.go).
	testimony map[sample.TaskKey][]testimony
	reporters map[sample.JobName]*Reporter
	reports   bool // there is a self-reported signal
	// limits are of the newest intervals of each signal, oldest first (round.go).
	limits map[sample.SignalName][]limits

	// what Take returns next
	actions  []Action
	dirty    []*incident
	changes  int // of incidents, ever
	offended bool
}

// New returns a Planner with nothing open.
func New(machine string, rule detect.Method, p Policy) *Planner {
	return &Planner{machine: machine, rule: rule, policy: p,
		open: map[incidentKey]*incident{}, victims: map[sample.TaskKey][]*incident{}, ids: map[string]*incident{}, freed: map[sample.TaskKey]bool{}, caps: map[string]*CapState{}, feedbackRates: feedbackRates{}, offenders: map[sample.JobName]*Offender{}, groups: map[incidentKey]*group{},
		testimony: map[sample.TaskKey][]testimony{}, reporters: map[sample.JobName]*Reporter{}, limits: map[sample.SignalName][]limits{}}
}

// Policy returns the planner's parameters.
func (p *Planner) Policy() Policy { return p.policy }

// id makes names that are unique across restarts as long as time advances.
func (p *Planner) id(prefix string, now sample.Millis) string {
	p.seq++
	return fmt.Sprintf("%s-%s-%d", prefix, now.Time().Format("20060102T150405.000"), p.seq)
}

// Finding processes an analysis; it keeps the suspects and never changes them. window
// returns a task's history. Finding returns the ID of the incident.
func (p *Planner) Finding(now sample.Millis, f detect.Finding, window func(sample.TaskKey) []detect.Point) (id string) {
	k := keyOf(f.Signal, f.Victim.Key, f.Kind)
	inc := p.open[k]
	if inc == nil {
		inc = &incident{Incident: Incident{ID: p.id("inc", now), Machine: p.machine, Rule: p.rule, Signal: f.Signal,
			Variant: f.Spec.Variant, Began: f.First, Opened: now, Mode: p.policy.Mode, Busy: p.busy,
			Outcome: NotActed}, key: k, conclusive: f.Kind, allBad: f.AllBad, freed: map[sample.TaskKey]string{}}
		p.open[k] = inc
		p.ids[inc.ID] = inc
		p.victims[f.Victim.Key] = append(p.victims[f.Victim.Key], inc)
	}
	inc.lastDisturbance = max(inc.lastDisturbance, f.At)
	inc.Victim, inc.first = f.Victim, f.First
	inc.SpecMean, inc.SpecStdDev, inc.SpecOwn, inc.SpecSamples = f.Spec.Mean, f.Spec.StdDev, f.Spec.Own, 0
	if f.Spec.Provisional {
		inc.SpecSamples = f.Spec.Samples
	}
	// A window without information revokes nothing. Caps in vain leave open that the task changed itself.
	capped := slices.ContainsFunc(inc.rounds, func(r *round) bool { return r.Ended == 0 || r.Outcome == TruePositive })
	silent := f.Kind == detect.Indeterminate && (inc.conclusive == detect.Neighbour || inc.conclusive == detect.PhaseChange)
	untold := f.AllBad || inc.Follows && len(inc.rounds) == 0 // half learnt, a change makes some intervals good
	lasting := untold && f.Kind == detect.Nobody && inc.conclusive == detect.PhaseChange
	if !silent && !lasting && (!capped || f.Kind == detect.Neighbour) {
		inc.conclusive = f.Kind
	}
	f.Suspects = inc.graded(f.Suspects)
	inc.keep(now, &f)
	if f.Disbelief != "" {
		inc.latest.Reason = f.Disbelief
	}
	if inc.Accused == 0 && inc.latest.Antagonists > 0 {
		inc.Accused, inc.Anomaly, inc.Busy = now, f.At, p.busy
	}
	p.follow(now, inc, untold)
	if !(silent && len(inc.rounds) == 0) && (!inc.capped() || inc.stillBad()) {
		inc.NotDone, inc.Advice, inc.Escalation = "", "", nil
		p.act(now, inc, f, window)
	}
	p.changed(inc, now)
	return inc.ID
}

// newest returns the newest round whose cap is in force, nil if there is none.
func (inc *incident) newest() *round {
	for _, r := range slices.Backward(inc.rounds) {
		if r.Ended == 0 {
			return r
		}
	}
	return nil
}

// capped reports whether a cap is in force for the incident.
func (inc *incident) capped() bool { return inc.newest() != nil }

// stillBad reports whether the victim stayed above its threshold under the newest cap.
func (inc *incident) stillBad() bool {
	r := inc.newest()
	return r == nil || r.failing
}

// ruledOut says why the incident's rounds so far rule out another cap on the task; "" if they do not.
func (inc *incident) ruledOut(k sample.TaskKey) string {
	if why := inc.freed[k]; why != "" {
		return why
	}
	for _, r := range inc.rounds {
		switch {
		case !r.Has(k):
		case r.didNotHelp() && r.alone(k): // a limit in vain says nothing of a part of its tasks
			return capDidNotHelp
		case r.Outcome == CapFailed:
			return "it could not be capped"
		}
	}
	return ""
}

// free rules out further caps on a task that another ended: of a cap that quell set in all open
// incidents, since each would set it again, of an operator's in its own.
func (p *Planner) free(c *CapState, why string) {
	for _, inc := range p.open {
		if inc == c.incident || c.By == auto {
			inc.freed[c.Task.Key], p.freed[c.Task.Key] = why, true
		}
	}
}

// act decides what follows from a finding. If nothing does, it records why.
func (p *Planner) act(now sample.Millis, inc *incident, f detect.Finding, window func(sample.TaskKey) []detect.Point) {
	switch {
	case p.actOnGroup(now, inc, &f, window):
	case f.Kind == detect.Neighbour:
		suspect, why := p.choose(inc, f)
		if suspect == nil {
			inc.NotDone, inc.Advice = why, inc.moveAdvice()
			return
		}
		switch why := p.noWitnessReason(now, inc, suspect); {
		case p.policy.Mode == Off:
			inc.NotDone = "enforcement is off"
		case f.Spec.Provisional:
			inc.NotDone = provisional(&f)
		case why != "":
			inc.NotDone = why
		case suspect.Level < p.policy.MinLevel:
			p.startTrial(now, inc, f, suspect, window)
		default:
			p.capSuspect(now, inc, f, suspect, window)
		}
	case f.Trial && f.Spec.Provisional:
		inc.NotDone = provisional(&f)
	case f.Trial:
		s := &f.Suspects[0]
		for i := range f.Suspects[:max(1, min(f.TrialCandidates, len(f.Suspects)))] {
			if inc.ruledOut(f.Suspects[i].Key) == "" {
				s = &f.Suspects[i]
				break
			}
		}
		p.startTrial(now, inc, f, s, window)
	}
}

// provisional says why nothing follows from a spec of few samples.
func provisional(f *detect.Finding) string {
	return fmt.Sprintf("its normal cost is provisional, of only %d samples", f.Spec.Samples)
}

// manualLimitAdvice is the advice if quell has no limit for the resource through which a suspect
// interferes. Its CPU usage is not the cause, so a CPU cap does not help.
func manualLimitAdvice(f *detect.Finding, s *detect.Suspect) string {
	sig, _ := sample.LookupSignal(f.Signal)
	return fmt.Sprintf("limit how much %s uses the %s it shares with %s; quell does not limit it", s.Name, sig.Domain, f.Victim.Name)
}

// capSuspect caps a suspect, or advises to cap it.
func (p *Planner) capSuspect(now sample.Millis, inc *incident, f detect.Finding, suspect *detect.Suspect, window func(sample.TaskKey) []detect.Point) {
	a, ok := p.policy.limited(f.Signal, suspect.Task)
	if !ok {
		inc.Advice = manualLimitAdvice(&f, suspect)
		return
	}
	var follows *curve
	if p.policy.Feedback && a.Rate > 0 {
		a.Rate, follows = p.initialRate(inc, suspect.Task, window)
	}
	lease, job := p.policy.For, offenderOf(suspect.Task)
	confined := p.confined(now, job)
	if confined {
		lease = max(lease, p.policy.ConfineFor)
	}
	what := fmt.Sprintf("cap %s to %s for %s", suspect.Name, a.Limit(), lease)
	if follows != nil {
		what += ", adjusted to the victim's cost"
	}
	if confined {
		what += fmt.Sprintf("; %s is confined: %d caps on it helped within %s", job, p.recent(now, job), p.policy.ConfineWithin)
	}
	switch {
	case p.policy.Mode == Advise:
		inc.advise(what)
		return
	case p.room(inc) < 1:
		inc.NotDone = fmt.Sprintf("%s; would %s", p.noRoom(inc), what)
		return
	}
	inc.Advice = what + inc.recurrenceAdvice(suspect.Task)
	a.Until, a.By = now.Add(lease), auto
	a.Why = fmt.Sprintf("%s of %s at %.3g over %.3g", f.Signal, f.Victim.Name, f.Cost, f.Threshold)
	switch why := Explain(f.Signal, f.Victim.Name, suspect); {
	case suspect.Basis == detect.ByFormula:
		a.Why += ", " + why
	case why != "":
		a.Why += ": " + why
	}
	c := p.start(now, inc, a, suspect.Correlation, window)
	c.round.Feedback, c.round.curve = follows != nil, follows
}

// advise records what would be done with the mode on.
func (inc *incident) advise(what string) {
	inc.Advice = what
	if len(inc.rounds) == 0 {
		inc.Outcome = WouldCap
	}
}

// startTrial caps a suspect for a short time to find out whether it is the antagonist, at most for
// Policy.For. Where quell may not do that itself, an operator can try a suspect that is named.
func (p *Planner) startTrial(now sample.Millis, inc *incident, f detect.Finding, s *detect.Suspect, window func(sample.TaskKey) []detect.Point) {
	trials, named := inc.trials(false), s.Level >= detect.Likely
	a, ok := p.policy.limited(f.Signal, s.Task)
	lasts := min(p.policy.Trial, p.policy.For)
	if lasts <= 0 {
		lasts = p.policy.For
	}
	what := fmt.Sprintf("cap %s to %s for %s as a trial", s.Name, a.Limit(), lasts)
	offered := what
	if command := trialCommand(&a, inc, s, lasts); command != "" {
		offered += ": " + command
	}
	switch why := cmp.Or(noHelpReason(f.Victim), noCapReason(s.Task), inc.ruledOut(s.Key), p.noWitnessReason(now, inc, s)); {
	case why != "":
		inc.NotDone = "not tried: " + why
	case !ok && named:
		inc.Advice = manualLimitAdvice(&f, s)
	case !ok || p.policy.Mode == Off || p.policy.Trial <= 0 && !named:
	case p.policy.Mode == Advise && named:
		inc.advise(offered)
	case p.policy.Mode == Advise:
		inc.Advice = offered
	case p.policy.Trial <= 0:
		inc.NotDone, inc.Advice = "not tried: trials are off", offered
	case trials >= p.policy.Trials:
		inc.NotDone = fmt.Sprintf("not tried: the limit of trials is reached (%d)", trials)
		if named {
			inc.Advice = offered
		}
	case p.Capped(s.Key):
		inc.NotDone = "not tried: it is capped already"
	case p.room(inc) < 1:
		inc.NotDone = "not tried: " + p.noRoom(inc)
	default:
		inc.Advice = what
		a.Until, a.By, a.Why = now.Add(lasts), auto, "trial: "+inc.latest.Reason
		c := p.start(now, inc, a, s.Correlation, window)
		c.round.Trial = true
	}
}

// choose picks the first of the ranked antagonists that may be capped for this victim, or says why
// there is none. Antagonists that need no trial come first. A task that was capped in vain for this
// incident is left out: a correlation ignores scale, so a cap hardly lowers it. So is a task that ranks
// behind usage outside any task and used less than that, or that ranks behind one that was capped for
// another incident since the anomaly: what that gives this victim too is not known yet.
func (p *Planner) choose(inc *incident, f detect.Finding) (*detect.Suspect, string) {
	if why := noHelpReason(f.Victim); why != "" {
		return nil, why
	}
	var reasons []string
	var best, before *detect.Suspect
	outside := 0.0
	for i := range f.Suspects[:f.Antagonists] {
		s := &f.Suspects[i]
		why := noCapReason(s.Task)
		if s.Name == detect.OutsideName {
			outside = s.Usage
		} else if why == "" && s.Usage < outside {
			why = "processes outside any task used more"
		}
		if c := p.capOf(s.Key); why == "" && c != nil {
			why = "it is capped already"
			if before == nil && c.From >= f.At {
				before = s
			}
		}
		if why == "" {
			why = inc.ruledOut(s.Key)
		}
		if why == "" && before != nil && s.Level <= before.Level {
			why = fmt.Sprintf("%s ranks before it and was just capped", before.Name)
		}
		switch {
		case why != "":
			reasons = append(reasons, fmt.Sprintf("%s: %s", s.Name, why))
		case best == nil || s.Level >= p.policy.MinLevel && best.Level < p.policy.MinLevel:
			best = s
		}
	}
	if best != nil {
		return best, ""
	}
	return nil, "no antagonist may be capped: " + strings.Join(reasons, "; ")
}

// start opens a cap, as a round of the incident if there is one.
func (p *Planner) start(now sample.Millis, inc *incident, a Action, correlation float64, window func(sample.TaskKey) []detect.Point) *CapState {
	return p.startTogether(now, inc, []Action{a}, []float64{correlation}, window)[0]
}

// startTogether opens caps with one end and reason, as one round of the incident if there is one.
func (p *Planner) startTogether(now sample.Millis, inc *incident, all []Action, correlations []float64, window func(sample.TaskKey) []detect.Point) (caps []*CapState) {
	for _, a := range all {
		a.Kind, a.ID = Cap, p.id("cap", now)
		caps = append(caps, &CapState{Action: a, From: now})
	}
	if inc != nil {
		first := &caps[0].Action
		r := &round{Round: Round{ID: first.ID, From: now, Until: first.Until, By: first.By, Why: first.Why}, caps: caps, analysis: inc.latest}
		for i, c := range caps {
			c.Incident, c.Victim, c.incident, c.round = inc.ID, inc.Victim.Key, inc, r
			one := Capped{Suspect: c.Task, Correlation: correlations[i], Rate: c.Rate, IO: c.IO, Net: c.Net}
			if i == 0 {
				r.Capped = one
			} else {
				r.With = append(r.With, one)
			}
		}
		p.before(inc, r, window)
		inc.rounds = append(inc.rounds, r)
		inc.forgetRounds()
		inc.Outcome = ""
		p.changed(inc, now)
	}
	for _, c := range caps {
		p.caps[c.ID] = c
		p.actions = append(p.actions, c.Action)
	}
	return caps
}

func (p *Planner) capOf(k sample.TaskKey) *CapState {
	for _, c := range p.caps {
		if c.Task.Key == k {
			return c
		}
	}
	return nil
}

// Capped reports whether a cap on the task is in force or requested.
func (p *Planner) Capped(k sample.TaskKey) bool { return p.capOf(k) != nil }

// Caps lists the caps in force or requested, by ID.
func (p *Planner) Caps() []CapState {
	all := make([]CapState, 0, len(p.caps))
	for _, c := range p.caps {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b CapState) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Role is a task's part in open incidents.
type Role string

// The roles, in ascending order: a task can be a suspect here and a victim there.
const (
	NoRole  Role = ""
	Suspect Role = "suspect" // named
	Victim  Role = "victim"
)

// Roles returns the tasks that have a role.
func (p *Planner) Roles() map[sample.TaskKey]Role {
	roles := map[sample.TaskKey]Role{}
	for _, inc := range p.open {
		for _, n := range inc.named {
			if n.Suspect.Level >= detect.Likely {
				roles[n.Suspect.Key] = max(roles[n.Suspect.Key], Suspect)
			}
		}
		roles[inc.Victim.Key] = Victim
	}
	return roles
}

// lift requests the end of a cap; outcome overrides the measured one.
func (p *Planner) lift(now sample.Millis, id, why string, outcome Outcome) {
	c := p.caps[id]
	if c == nil || c.ended {
		return
	}
	c.ended = true
	p.finish(now, c, outcome)
	p.changed(c.incident, now)
	// Also if it is not known to be applied yet: it may be in progress.
	a := c.Action
	a.Kind, a.Why = Uncap, why
	p.actions = append(p.actions, a)
	p.liftOthers(now, c, why)
}

// liftOthers requests the end of the caps of the same round: it has all of its caps, or none.
func (p *Planner) liftOthers(now sample.Millis, c *CapState, why string) {
	if c.round == nil {
		return
	}
	for _, other := range c.round.caps {
		p.lift(now, other.ID, why, "")
	}
}

// finish ends the cap's round and judges it (CPI², section 7.2): whether the victim's
// cost moved by more than one σ of its spec and, if the policy requires it
// (Policy.Relief), fell by enough of its excess over the mean.
func (p *Planner) finish(now sample.Millis, c *CapState, outcome Outcome) {
	r := c.round
	if r == nil || r.Ended != 0 {
		return
	}
	r.Ended = now
	c.incident.lastDisturbance = max(c.incident.lastDisturbance, now)
	sd := c.incident.SpecStdDev
	enough := max(sd, p.policy.Relief*(float64(r.CostBefore)-c.incident.SpecMean))
	switch fell := float64(r.CostBefore - r.CostUnder); {
	case outcome != "":
		r.Outcome = outcome
	case r.Samples == 0 || math.IsNaN(float64(r.CostBefore)):
		r.Outcome = NotMeasured
	case fell > enough:
		r.Outcome = TruePositive
	case -fell > sd:
		r.Outcome = FalsePositive
	default:
		r.Outcome = Noise
	}
	c.incident.Outcome = r.Outcome
	if len(r.With) == 0 {
		c.incident.applyOutcome(now, r)
	}
	if r.ofGroup {
		p.judgeGroup(now, c.incident, r)
	}
	if c.incident.Accused == 0 && len(c.incident.named) > 0 {
		c.incident.Accused, c.incident.Anomaly, c.incident.Busy = now, now, p.busy
	}
	p.recordOffence(now, c)
}

// Applied reports the result of a Cap action.
func (p *Planner) Applied(now sample.Millis, id string, err error) {
	c := p.caps[id]
	if c == nil {
		return
	}
	if err != nil {
		p.finish(now, c, CapFailed)
		if c.incident != nil {
			c.incident.NotDone = "cap " + string(c.Task.Name) + ": " + err.Error()
		}
		delete(p.caps, id)
		p.liftOthers(now, c, "the cap on "+string(c.Task.Name)+" failed")
	} else {
		c.Applied = true
		if r := c.round; r != nil {
			r.applied = !slices.ContainsFunc(r.caps, func(c *CapState) bool { return !c.Applied })
		}
	}
	p.changed(c.incident, now)
}

// Lifted reports that a cap is no longer in force: an Uncap was carried out, or another
// program changed the limit (takenOver).
func (p *Planner) Lifted(now sample.Millis, id string, takenOver bool) {
	c := p.caps[id]
	if c == nil {
		return
	}
	outcome := Outcome("")
	if takenOver {
		outcome = CapTakenOver
		p.free(c, "another program set its limit")
	}
	p.finish(now, c, outcome)
	delete(p.caps, id)
	p.liftOthers(now, c, "the cap on "+string(c.Task.Name)+" has ended")
	p.changed(c.incident, now)
}

// Gone reports that a task ended.
func (p *Planner) Gone(now sample.Millis, k sample.TaskKey) {
	p.feedbackRates.forget(k)
	p.forgetGroups(k)
	delete(p.testimony, k)
	if c := p.capOf(k); c != nil {
		p.lift(now, c.ID, "the task ended", SuspectExited)
	}
	if p.freed[k] {
		delete(p.freed, k)
		for _, inc := range p.open {
			delete(inc.freed, k)
		}
	}
	for _, inc := range slices.Clone(p.victims[k]) {
		for _, r := range inc.rounds {
			p.lift(now, r.ID, "the victim ended", VictimExited)
		}
		inc.NotDone = "the victim ended"
		p.close(now, inc)
	}
}
