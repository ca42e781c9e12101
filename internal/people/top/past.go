package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace/recording"
	"github.com/quell-dev/quell/internal/people/report"
)

// Reach is how far before and after its time a Past goes.
const Reach = time.Hour

// Past is what was recorded of a machine around a time: incidents with their charts and, where
// the agent's samples were recorded, all tasks.
type Past struct {
	At        sample.Millis
	Machine   string
	incidents []incident.Record
	samples   []sample.Sample // ordered by time
	times     []sample.Millis // at which intervals ended, ascending
}

// Book is where incidents are read: the agent, or its log.
type Book interface {
	// Overlapping returns the incidents, with charts, that were open in a stretch of time.
	Overlapping(ctx context.Context, from, to sample.Millis) ([]incident.Record, error)
}

// AgentBook is the agent as a Book.
type AgentBook struct{ Agent }

// Overlapping implements Book.
func (b AgentBook) Overlapping(ctx context.Context, from, to sample.Millis) (all []incident.Record, err error) {
	found, err := b.Incidents(ctx, logbook.Query{Since: from})
	for i := range found.Incidents {
		if inc := &found.Incidents[i]; overlaps(inc, from, to) {
			full, err := b.Incident(ctx, inc.ID)
			if err != nil {
				return nil, err
			}
			all = append(all, full)
		}
	}
	return all, err
}

// LogBook is the log in an agent's state directory as a Book.
type LogBook struct{ *logbook.Book }

// Overlapping implements Book.
func (b LogBook) Overlapping(_ context.Context, from, to sample.Millis) ([]incident.Record, error) {
	all, _, err := b.List(logbook.Query{Since: from, Charts: true})
	return slices.DeleteFunc(all, func(inc incident.Record) bool { return !overlaps(&inc, from, to) }), err
}

func overlaps(inc *incident.Record, from, to sample.Millis) bool {
	return inc.Began <= to && (inc.Closed == 0 || inc.Closed >= from)
}

// LoadPast reads what was recorded around a time. Recordings are files that `quell replay` reads:
// the agent's trace (record in its configuration) or segments of a store. A recording of several
// machines is read for the named one.
func LoadPast(ctx context.Context, at sample.Millis, machine string, b Book, recordings []string) (*Past, error) {
	p := &Past{At: at, Machine: machine}
	from, to := at.Add(-Reach), at.Add(Reach)
	var err error
	if b != nil {
		if p.incidents, err = b.Overlapping(ctx, from, to); err != nil {
			return nil, err
		}
	}
	var machines []string
	for _, name := range recordings {
		if err := eachSample(ctx, name, func(s *sample.Sample) {
			if i, found := slices.BinarySearch(machines, s.Machine); !found {
				machines = slices.Insert(machines, i, s.Machine)
			}
			if s.TS >= from && s.TS <= to {
				p.samples = append(p.samples, *s)
			}
		}); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	switch {
	case len(machines) == 1:
		p.Machine = machines[0]
	case len(machines) > 1 && !slices.Contains(machines, p.Machine):
		return nil, fmt.Errorf("the recordings are of %s: want one of them to be %q, this machine", strings.Join(machines, ", "), machine)
	}
	p.samples = slices.DeleteFunc(p.samples, func(s sample.Sample) bool { return s.Machine != p.Machine })
	slices.SortStableFunc(p.samples, func(a, b sample.Sample) int { return cmp.Compare(a.TS, b.TS) })
	for i := range p.samples {
		p.times = append(p.times, p.samples[i].TS)
	}
	for i := range p.incidents {
		p.Machine = cmp.Or(p.Machine, p.incidents[i].Machine)
		p.times = append(p.times, p.incidents[i].Times...)
	}
	slices.Sort(p.times)
	p.times = slices.Compact(p.times)
	return p, nil
}

func eachSample(ctx context.Context, name string, do func(*sample.Sample)) (err error) {
	r, err := recording.Open(name, recording.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for ctx.Err() == nil {
		block, err := r.Next()
		for i := range block {
			do(&block[i])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// step is the recorded time after at, or before it; at if there is none.
func (p *Past) step(at sample.Millis, forth bool) sample.Millis {
	i, found := slices.BinarySearch(p.times, at)
	switch {
	case forth && found:
		i++
	case !forth:
		i--
	}
	if i < 0 || i >= len(p.times) {
		return at
	}
	return p.times[i]
}

// nothing says why there is no task at a time.
func (p *Past) nothing(at sample.Millis, s report.Style) string {
	if len(p.times) == 0 {
		return "nothing is recorded within an hour of " + s.Clock(at) + ": no incident was open. All tasks of any time are in the file that `record` in the agent's configuration names; --trace reads it"
	}
	return fmt.Sprintf("nothing is recorded of %s; Left and Right go to recorded times, from %s to %s", s.Clock(at), s.Clock(p.times[0]), s.Clock(p.times[len(p.times)-1]))
}

// stale is the number of intervals for which the last sample of a task stands.
const stale = 2

// moment is the machine as recorded at a time.
func (p *Past) moment(at sample.Millis) moment {
	b := newPast(at, at.Add(-stale*p.interval()))
	end, _ := slices.BinarySearch(p.times, at+1)
	for i := range p.samples {
		if s := &p.samples[i]; s.TS <= at {
			b.sample(s, s.TS > b.oldest)
		}
	}
	var open []incident.Record
	for i := range p.incidents {
		if inc := &p.incidents[i]; inc.Began <= at && (inc.Closed == 0 || at < inc.Closed) {
			open = append(open, *inc)
			b.incident(inc)
		}
	}
	m := moment{open: open, courses: b.courses}
	for _, v := range b.views {
		v.Role = report.Role(&v.Task, open)
		m.tasks = append(m.tasks, *v)
	}
	m.status = api.Status{Machine: p.Machine, Now: at, Tasks: len(m.tasks), Open: len(open), Caps: b.caps, Intervals: uint64(end)}
	return m
}

// interval is the usual distance of recorded times.
func (p *Past) interval() time.Duration {
	var steps []time.Duration
	for i := 1; i < len(p.times); i++ {
		steps = append(steps, p.times[i].Sub(p.times[i-1]))
	}
	if len(steps) == 0 {
		return time.Minute
	}
	slices.Sort(steps)
	return steps[len(steps)/2]
}

// past collects the tasks of a time.
type past struct {
	at      sample.Millis
	oldest  sample.Millis // what is older says nothing about at
	views   map[sample.TaskName]*api.TaskView
	courses map[sample.TaskName]*report.Course
	caps    []api.CapView
}

func newPast(at, oldest sample.Millis) *past {
	return &past{at: at, oldest: oldest, views: map[sample.TaskName]*api.TaskView{}, courses: map[sample.TaskName]*report.Course{}}
}

func (b *past) view(t sample.Task) *api.TaskView {
	v := b.views[t.Name]
	if v == nil {
		v = &api.TaskView{Task: t, CPU: math.NaN()}
		b.views[t.Name] = v
	}
	return v
}

func (b *past) course(name sample.TaskName) *report.Course {
	c := b.courses[name]
	if c == nil {
		c = &report.Course{Costs: map[sample.SignalName][]float64{}}
		b.courses[name] = c
	}
	return c
}

// sample takes a sample into the course of its task and, if it is recent, into its view. They
// come in the order of time.
func (b *past) sample(s *sample.Sample, recent bool) {
	c := b.course(s.Task)
	if n := len(c.Times); n == 0 || c.Times[n-1] != s.TS {
		extend(c, s.TS)
	}
	last := len(c.Times) - 1
	c.CPU[last] = float64(s.CPU)
	known := !math.IsNaN(float64(s.Cost))
	if known {
		set(c, s.Signal, float64(s.Cost))
	}
	if !recent {
		return
	}
	v := b.view(sample.Task{Name: s.Task, Job: s.Job, Class: s.Class})
	v.CPU, v.Flags, v.Capped = float64(s.CPU), s.Flags.String(), s.Flags&sample.Capped != 0
	if known {
		b.cost(v, api.SignalView{Signal: s.Signal, Cost: incident.Value(s.Cost), Limit: incident.Value(math.NaN()), Coverage: float64(s.Coverage)})
	}
}

// cost puts a signal into a view; a newer one replaces it.
func (b *past) cost(v *api.TaskView, x api.SignalView) {
	if i := slices.IndexFunc(v.Costs, func(y api.SignalView) bool { return y.Signal == x.Signal }); i >= 0 {
		v.Costs[i] = x
		return
	}
	v.Costs = append(v.Costs, x)
}

// incident takes the victim with its threshold, the suspects of its chart, and caps.
func (b *past) incident(inc *incident.Record) {
	end, _ := slices.BinarySearch(inc.Times, b.at+1)
	recorded := b.courses[inc.Victim.Name] != nil
	v := b.view(inc.Victim)
	at := func(values []incident.Value) float64 {
		if end == 0 || end > len(values) || inc.Times[end-1] <= b.oldest {
			return math.NaN()
		}
		return float64(values[end-1])
	}
	x := api.SignalView{Signal: inc.Signal, Cost: incident.Value(at(inc.VictimCost)), Coverage: 1}
	if i := slices.IndexFunc(v.Costs, func(y api.SignalView) bool { return y.Signal == inc.Signal }); i >= 0 {
		x = v.Costs[i]
	}
	x.Limit = incident.Value(inc.Threshold)
	x.Outlier = float64(x.Cost) > inc.Threshold
	b.cost(v, x)
	if !recorded {
		b.chart(inc.Victim.Name, inc.Times[:end], inc.VictimCost, func(c *report.Course, cost float64) { set(c, inc.Signal, cost) })
	}
	sig, _ := sample.LookupSignal(inc.Signal)
	for _, track := range inc.Usage {
		recorded := b.courses[track.Task] != nil
		task := sample.Task{Name: track.Task}
		if i := slices.IndexFunc(inc.Listed(), func(f plan.Finding) bool { return f.Suspect.Name == track.Task }); i >= 0 {
			task = inc.Listed()[i].Suspect.Task
		}
		v := b.view(task)
		if sig.Pressure != sample.CPUPerSecond || recorded { // else the chart's pressure is its usage
			continue
		}
		v.CPU = at(track.Usage)
		b.chart(track.Task, inc.Times[:end], track.Usage, func(c *report.Course, usage float64) { c.CPU[len(c.CPU)-1] = usage })
	}
	for _, r := range inc.Rounds {
		until := cmp.Or(r.Ended, r.Until)
		if r.From > b.at || until <= b.at {
			continue
		}
		for _, c := range r.Tasks() {
			b.view(c.Suspect).Capped = true
			b.caps = append(b.caps, api.CapView{Task: c.Suspect.Name, CapState: plan.CapState{From: r.From,
				Action: plan.Action{ID: r.ID, Rate: c.Rate, IO: c.IO, Net: c.Net, Until: until, By: r.By, Why: r.Why, Incident: inc.ID}}})
		}
	}
}

// chart makes a course of a line of an incident's chart.
func (b *past) chart(task sample.TaskName, times []sample.Millis, values []incident.Value, put func(*report.Course, float64)) {
	c := b.course(task)
	for i := range min(len(times), len(values)) {
		extend(c, times[i])
		put(c, float64(values[i]))
	}
}

// add adds a task's last interval to its course.
func add(c *report.Course, at sample.Millis, t api.TaskView) {
	extend(c, at)
	c.CPU[len(c.CPU)-1] = t.CPU
	for _, v := range t.Costs {
		set(c, v.Signal, float64(v.Cost))
	}
}

// extend begins an interval in which nothing is known yet.
func extend(c *report.Course, at sample.Millis) {
	c.Times, c.CPU = append(c.Times, at), append(c.CPU, math.NaN())
	for sig := range c.Costs {
		c.Costs[sig] = append(c.Costs[sig], math.NaN())
	}
}

// set is the cost of a signal in the last interval.
func set(c *report.Course, sig sample.SignalName, cost float64) {
	values := c.Costs[sig]
	for len(values) < len(c.Times) {
		values = append(values, math.NaN())
	}
	values[len(values)-1] = cost
	c.Costs[sig] = values
}
