package replay

import (
	"cmp"
	"maps"
	"slices"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Job holds the counts of a job.
type Job struct {
	Job       sample.JobName `json:"job"`
	Class     sample.Class   `json:"class"`
	Tasks     int            `json:"tasks"`
	Samples   int            `json:"samples"` // with a cost
	Judged    int            `json:"judged"`  // compared with a ready spec
	Outliers  int            `json:"outliers"`
	Anomalies int            `json:"anomalies"`
	Accusing  int            `json:"accusing"` // accusations of other tasks because of its tasks' anomalies
	Accused   int            `json:"accused"`  // accusations of its tasks
}

// Accusation is the accusation of one suspect, the first in the list of a finding, in one
// incident.
type Accusation struct {
	Incident  string            `json:"incident"`
	Machine   string            `json:"machine"`
	Signal    sample.SignalName `json:"signal"`
	Victim    sample.TaskName   `json:"victim"`
	Suspect   sample.TaskName   `json:"suspect"`
	Statement                   // the first
	Again     []Statement       `json:"-"` // later ones of the same accusation, by time
}

// Statement is a finding that names a suspect first.
type Statement struct {
	Correlation float64       `json:"correlation"`
	Began       sample.Millis `json:"began"` // of the anomaly
	At          sample.Millis `json:"at"`    // of the finding
}

// each calls f with all statements, by time.
func (a *Accusation) each(f func(Statement)) {
	f(a.Statement)
	for _, s := range a.Again {
		f(s)
	}
}

// Result is the result of a replay.
type Result struct {
	Rule detect.Method
	// Samples are those with a cost that is active and sane, which detection uses. Judged
	// were compared with a ready spec, Outliers were over the threshold.
	Samples, Judged, Outliers int
	// Usage counts samples of which only the usage is used.
	Usage int
	// Anomalies are the outliers that complete, with those before them, the required number
	// of outliers: while a task stays bad each of its samples is one.
	Anomalies int
	// Late were not in order of time, Twice of a task that had one of that time, UnknownSignal have a
	// signal that quell does not know: they were skipped.
	Late, Twice, UnknownSignal int
	Machines                   int
	From, To                   sample.Millis
	Watched                    sample.Millis // from the first to the last sample of each machine, summed over them
	// Gaps counts the times between two samples of a task. Near of them were less than half of
	// Options.Step, Far more than twice that.
	Gaps, Near, Far int
	Jobs            []Job
	Incidents       []*incident.Record // by time; only the first ones have charts
	Accusations     []Accusation       // by time
	Costs           []Costs            // jobs with most samples first; if requested
}

// maxCharts is the number of incidents that keep their chart, which takes most of an
// incident's memory.
const maxCharts = 200

// Replayer plays samples of any number of machines. It is used from one goroutine.
type Replayer struct {
	options  Options
	machines map[string]*machine
	last     *machine
	jobs     map[sample.JobName]*Job
	accused  map[accusation]int // index in the result's Accusations
	drawn    []*incident.Record // those that have a chart
	costs    costs              // nil: not requested
	result   Result
}

type accusation struct {
	machine, incident string
	suspect           sample.TaskKey
}

// New returns a Replayer without samples.
func New(o Options) *Replayer {
	p := &Replayer{options: o, machines: map[string]*machine{}, jobs: map[sample.JobName]*Job{}, accused: map[accusation]int{},
		result: Result{Rule: o.Detect.Method}}
	if o.Costs {
		p.costs = costs{}
	}
	return p
}

// Add processes a sample.
func (p *Replayer) Add(s *sample.Sample) {
	if p.last == nil || p.last.name != s.Machine {
		p.last = p.machine(s.Machine)
	}
	p.last.add(s)
}

// Finish ends every machine's recording and returns the result.
func (p *Replayer) Finish() *Result {
	for _, name := range slices.Sorted(maps.Keys(p.machines)) {
		p.machines[name].finish()
	}
	r := &p.result
	r.Machines = len(p.machines)
	for _, j := range p.jobs {
		r.Jobs = append(r.Jobs, *j)
	}
	if p.costs != nil {
		r.Costs = listCosts(p.costs)
	}
	r.order()
	return r
}

// order sorts the result, so that it does not depend on the order of processing.
func (r *Result) order() {
	slices.SortFunc(r.Jobs, func(a, b Job) int { return cmp.Compare(a.Job, b.Job) })
	firstCharts(r.Incidents)
	slices.SortStableFunc(r.Accusations, func(a, b Accusation) int { return compareAccusations(&a, &b) })
}

func compareAccusations(a, b *Accusation) int {
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Victim, b.Victim), cmp.Compare(a.Suspect, b.Suspect))
}

// Merge adds the result of another Replayer on other machines.
func (r *Result) Merge(o *Result) {
	r.Samples, r.Judged, r.Outliers, r.Usage = r.Samples+o.Samples, r.Judged+o.Judged, r.Outliers+o.Outliers, r.Usage+o.Usage
	r.Anomalies, r.Late, r.Twice, r.UnknownSignal = r.Anomalies+o.Anomalies, r.Late+o.Late, r.Twice+o.Twice, r.UnknownSignal+o.UnknownSignal
	r.Machines, r.Watched = r.Machines+o.Machines, r.Watched+o.Watched
	r.Gaps, r.Near, r.Far = r.Gaps+o.Gaps, r.Near+o.Near, r.Far+o.Far
	r.span(o.From)
	r.span(o.To)
	for _, j := range o.Jobs {
		i := slices.IndexFunc(r.Jobs, func(k Job) bool { return k.Job == j.Job })
		if i < 0 {
			r.Jobs = append(r.Jobs, j)
			continue
		}
		r.Jobs[i].add(&j)
	}
	r.Costs = mergeCosts(r.Costs, o.Costs)
	r.Incidents = append(r.Incidents, o.Incidents...)
	r.Accusations = append(r.Accusations, o.Accusations...)
	r.order()
}

func (j *Job) add(o *Job) {
	j.Tasks, j.Samples, j.Judged, j.Outliers = j.Tasks+o.Tasks, j.Samples+o.Samples, j.Judged+o.Judged, j.Outliers+o.Outliers
	j.Anomalies, j.Accusing, j.Accused = j.Anomalies+o.Anomalies, j.Accusing+o.Accusing, j.Accused+o.Accused
	j.Class = max(j.Class, o.Class)
}

func (r *Result) span(at sample.Millis) {
	if at == 0 {
		return
	}
	if r.From == 0 || at < r.From {
		r.From = at
	}
	r.To = max(r.To, at)
}

func (p *Replayer) job(name sample.JobName) *Job {
	j := p.jobs[name]
	if j == nil {
		j = &Job{Job: name}
		p.jobs[name] = j
	}
	return j
}

// count adds the verdict on a machine's sample.
func (p *Replayer) count(m *machine, v *view, r *detect.Reading, verdict *detect.Verdict) {
	j := v.job
	j.Class = max(j.Class, r.Task.Class)
	switch {
	case !verdict.Sane:
		p.result.Usage++
		return
	case verdict.Judged:
		p.result.Judged++
		j.Judged++
	}
	p.result.Samples++
	j.Samples++
	if v.costs != nil {
		v.costs.add(markOf(m.name, r.Task.Name, m.at), r.Cost)
	}
	if verdict.Outlier {
		p.result.Outliers++
		j.Outliers++
	}
	if verdict.Anomaly {
		p.result.Anomalies++
		j.Anomalies++
	}
}

// found processes a finding.
func (p *Replayer) found(m *machine, f *pipeline.Finding) {
	if f.Kind != detect.Neighbour || f.Antagonists == 0 {
		return
	}
	first := f.Suspects[0]
	if first.Name == detect.OutsideName {
		return // no task is accused
	}
	said := Statement{first.Correlation, f.First, f.At}
	k := accusation{m.name, f.Incident, first.Key}
	if i, again := p.accused[k]; again {
		a := &p.result.Accusations[i]
		a.Again = append(a.Again, said)
		return
	}
	p.accused[k] = len(p.result.Accusations)
	p.job(f.Victim.Job).Accusing++
	p.job(first.Job).Accused++
	p.result.Accusations = append(p.result.Accusations, Accusation{Incident: f.Incident, Machine: m.name, Signal: f.Signal,
		Victim: f.Victim.Name, Suspect: first.Name, Statement: said})
}

// closed keeps an incident in its final state. An incident that maxCharts others precede has no
// chart in the end, whichever incidents other workers have.
func (p *Replayer) closed(c *pipeline.Change) {
	record := incident.Record(*c)
	p.result.Incidents = append(p.result.Incidents, &record)
	if p.drawn = append(p.drawn, &record); len(p.drawn) > 2*maxCharts {
		firstCharts(p.drawn)
		p.drawn = p.drawn[:maxCharts]
	}
}

// firstCharts sorts incidents by time, and drops the charts of all but the first ones.
func firstCharts(all []*incident.Record) {
	slices.SortStableFunc(all, func(a, b *incident.Record) int {
		return cmp.Or(cmp.Compare(a.Opened, b.Opened), cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.ID, b.ID))
	})
	for _, r := range all[min(maxCharts, len(all)):] {
		r.Chart = pipeline.Chart{}
	}
}
