package pipeline

import (
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Config says how a machine's pipeline works.
type Config struct {
	Machine string
	CPUs    int // of the machine, for Change.CPUs; 0: not known
	Detect  detect.Params
	// Policy says how to act. Where levels state the confidence (switch Evidence), only a
	// proven suspect is capped without a trial (plan.Policy.MinLevel), and a cap that helped
	// removed at least detect.Relief of the excess cost (plan.Policy.Relief).
	Policy plan.Policy
	// History learns what jobs cost; nil: nothing is learnt, and each Subject has the
	// Spec that its host set.
	History *spec.History
	// External returns a spec from elsewhere (the server's) that takes precedence over what
	// History learnt; nil for none.
	External func(spec.Key, sample.Millis) (spec.Spec, bool)
	// LearnIncidents lets samples that were taken in incidents teach specs too. Without the
	// switch Withhold they do in any case.
	LearnIncidents bool
	// Charts keeps the course of each open incident for Change.Chart.
	Charts bool
}

// Pipeline is the loop of one machine. Its package comment is the contract. Of its parts' methods, a
// host does not call Observe, Next, Ended, Interval, Believe, Finding, CapFor and Take: the pipeline does.
type Pipeline struct {
	*detect.Detector
	*plan.Planner
	config    Config
	intervals map[sample.SignalName]*Interval
	findings  []Finding
	charts    charts
	evasions  map[sample.TaskKey]*evasion
	departed  map[sample.JobName]*evasion // of tasks that ended
}

// New returns a Pipeline that has seen nothing.
func New(c Config) *Pipeline {
	if c.Detect.Switches.Evidence {
		c.Policy.MinLevel, c.Policy.Relief = detect.Proven, detect.Relief
	}
	c.Detect.Groups = c.Policy.Groups
	c.LearnIncidents = c.LearnIncidents || !c.Detect.Switches.Withhold
	p := &Pipeline{config: c, Detector: detect.New(c.Detect), Planner: plan.New(c.Machine, c.Detect.Method, c.Policy),
		intervals: map[sample.SignalName]*Interval{}, evasions: map[sample.TaskKey]*evasion{}, departed: map[sample.JobName]*evasion{}}
	if c.Charts {
		p.charts = charts{}
	}
	return p
}

// SetCPUs sets Config.CPUs: CPUs come and go.
func (p *Pipeline) SetCPUs(n int) { p.config.CPUs = n }

// Finding is an analysis and the incident that it belongs to.
type Finding struct {
	detect.Finding
	Now      sample.Millis // when it was made
	Incident string        // ID
}

// Change is an incident that has changed.
type Change struct {
	plan.Incident
	// CPUs is the number of the machine's CPUs, so that Busy ÷ CPUs is its utilisation; 0: not known.
	CPUs int `json:"cpus,omitempty"`
	// Profiles are links to profiles of what the tasks ran; the host sets them.
	Profiles []Profile `json:"profiles,omitempty"`
	Chart              // empty without Config.Charts
}

// Profile is a link to a profile of a task in the time of an incident.
type Profile struct {
	Task sample.TaskName `json:"task"`
	URL  string          `json:"url"`
}

// Ready is the work for the host (see the package comment, 4).
type Ready struct {
	Findings  []Finding     // analyses, for logs and counts
	Actions   []plan.Action // to be carried out, in order
	Incidents []Change      // to be recorded, ordered by their last change
	Offenders bool          // the list of offenders is to be stored
}

// Pending reports whether Ready has something to return.
func (p *Pipeline) Pending() bool { return len(p.findings) > 0 || p.Planner.Pending() }

// Ready returns the work for the host, and whether there is any.
func (p *Pipeline) Ready() (Ready, bool) {
	if !p.Pending() {
		return Ready{}, false
	}
	out := p.Take()
	r := Ready{Findings: p.findings, Actions: out.Actions, Offenders: out.Offenders}
	p.findings = nil
	for _, inc := range out.Incidents {
		r.Incidents = append(r.Incidents, Change{Incident: inc, CPUs: p.config.CPUs, Chart: p.charts.of(&inc)})
	}
	return r, true
}

// Analyse analyses the oldest anomaly that waits and plans what follows. It returns false
// if none waits, or if the last analysis was less than detect.Params.Pace ago.
func (p *Pipeline) Analyse(now sample.Millis) bool {
	f, ok := p.Next(now)
	if !ok {
		return false
	}
	f.Suspects, f.Statistics = slices.Clone(f.Suspects), slices.Clone(f.Statistics)
	f = p.Believe(now, f)
	id := p.Finding(now, f, p.window(f.Signal))
	if p.charts != nil {
		inc, _ := p.Incident(id)
		p.chart(&inc)
	}
	p.findings = append(p.findings, Finding{Finding: f, Now: now, Incident: id})
	return true
}

// Advance advances over the time after from and before to in steps of detect.Params.Pace,
// with Tick and Analyse at each. Steps at which nothing would happen are left out.
func (p *Pipeline) Advance(from, to sample.Millis) {
	pace := max(p.config.Detect.Pace, time.Millisecond)
	step := sample.Millis(pace.Milliseconds())
	for now := from + step; now < to; now += step {
		if !p.Waiting() {
			due, ok := p.Due()
			if !ok || due >= to {
				return
			}
			if due > now {
				if now += (due - now + step - 1) / step * step; now >= to {
					return
				}
			}
		}
		p.Tick(now)
		for p.Analyse(now) {
		}
	}
}

// window returns tasks' histories in a signal.
func (p *Pipeline) window(signal sample.SignalName) func(sample.TaskKey) []detect.Point {
	return func(k sample.TaskKey) []detect.Point { return p.Window(signal, k) }
}

// Gone reports that a task ended: it is neither capped nor helped any more.
func (p *Pipeline) Gone(now sample.Millis, task sample.TaskKey) {
	p.Ended(task)
	p.Planner.Gone(now, task)
}

// Forget drops what is known of a task; its samples stay in its job's spec.
func (p *Pipeline) Forget(task sample.TaskKey) {
	p.Detector.Forget(task)
	p.depart(task)
	if p.config.History != nil {
		p.config.History.Forget(task)
	}
}

// Cap plans an operator's cap on a task and returns its ID; errors wrap plan.ErrRefused. If
// it names an open incident, it is a round of that (plan.Planner.CapFor).
func (p *Pipeline) Cap(now sample.Millis, t sample.Task, terms command.Terms, incident, by, why string) (id string, err error) {
	inc, open := p.Incident(incident)
	if id, err = p.CapFor(now, t, terms, incident, by, why, p.window(inc.Signal)); err != nil || !open || p.charts == nil {
		return id, err
	}
	inc, _ = p.Incident(incident) // with the round
	p.chart(&inc)
	return id, nil
}

// History returns the history that learns specs, nil if nothing is learnt.
func (p *Pipeline) History() *spec.History { return p.config.History }

// Open lists the open incidents, oldest first.
func (p *Pipeline) Open() []Change {
	var all []Change
	for _, inc := range p.Planner.Open() {
		all = append(all, Change{Incident: inc, CPUs: p.config.CPUs, Chart: p.charts[inc.ID].value()})
	}
	return all
}
