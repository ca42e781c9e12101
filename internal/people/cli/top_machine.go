package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/top"
)

const (
	// everyMachine is how often the server is asked: it has a task's samples once a minute.
	everyMachine = 10 * time.Second
	// silentFor is how long a machine may send nothing: its agent sends every minute.
	silentFor = 3 * time.Minute
)

// distant is the agent of another machine, as far as quell-server knows it.
type distant struct {
	*cluster.Client
	machine string
	now     func() time.Time
	// At the last Status: what Tasks and Incidents return. Fresh: Tasks has not returned it.
	open  []incident.Record
	tasks []api.TaskView
	fresh bool
}

// agent is what top shows: the agent here, or that of another machine.
func (a *commands) agent(s *scope) top.Agent {
	if s.machine == "" {
		return a.client()
	}
	return &distant{Client: s.Client, machine: s.machine, now: a.Now}
}

// Status implements top.Agent. It asks for all that Tasks and Incidents return.
func (d *distant) Status(ctx context.Context) (api.Status, error) {
	st := api.Status{Machine: d.machine, Now: sample.At(d.now()), Caps: []api.CapView{}}
	all, err := d.Machines(ctx)
	if err != nil {
		return st, err
	}
	i := slices.IndexFunc(all, func(m cluster.Machine) bool { return m.Machine == d.machine })
	if i < 0 {
		return st, app.Negative(fmt.Errorf("quell-server knows no machine %q", d.machine), "see `quell machines`")
	}
	tasks, err := d.Client.Tasks(ctx, d.machine)
	if err != nil {
		return st, err
	}
	if d.open, _, err = d.Client.Incidents(ctx, cluster.IncidentQuery{Machine: d.machine, Open: true, Since: "168h"}); err != nil {
		return st, err
	}
	ago := st.Now.Sub(all[i].LastSeen)
	if ago > silentFor && len(tasks) == 0 { // after minutes the server lists its tasks no more
		return st, app.Negative(fmt.Errorf("%s has sent nothing for %s", d.machine, ago.Round(time.Second)), "see whether quell-agent runs there and reaches the server")
	}
	slices.Reverse(d.open) // agents list the oldest first
	d.tasks = app.List[api.TaskView](nil)
	for _, t := range tasks {
		v, err := d.view(&t)
		if err != nil {
			return st, err
		}
		d.tasks = append(d.tasks, v)
		st.Intervals = max(st.Intervals, uint64(t.At)) // it changes with each interval
		if t.Capped {
			st.Caps = append(st.Caps, api.CapView{Task: v.Name})
		}
	}
	st.Tasks, st.Open, d.fresh = len(d.tasks), len(d.open), true
	if s := all[i].State; s == nil || st.Mode.UnmarshalText([]byte(s.Mode)) != nil {
		st.Degraded = append(st.Degraded, "the enforcement mode is not known")
	}
	if ago > silentFor {
		st.Degraded = append(st.Degraded, fmt.Sprintf("it has sent nothing for %s", ago.Round(time.Second)))
	}
	return st, nil
}

// view is a task as its agent would show it, from its newest samples.
func (d *distant) view(t *cluster.Task) (api.TaskView, error) {
	v := api.TaskView{CPU: t.CPU, Capped: t.Capped}
	if v.Name.UnmarshalText([]byte(t.Task)) != nil {
		v.Name = sample.TaskName(t.Task)
	}
	v.Job = t.Job
	if err := v.Class.UnmarshalText([]byte(t.Class)); err != nil {
		return v, fmt.Errorf("read tasks of %s: %w", d.machine, err)
	}
	for i := range d.open {
		inc := &d.open[i]
		switch named := inc.Named(); {
		case inc.Victim.Name == v.Name:
			v.Role = plan.Victim
		case v.Role == plan.NoRole && slices.ContainsFunc(named, func(f plan.Finding) bool { return f.Suspect.Name == v.Name && f.Suspect.Level >= detect.Likely }):
			v.Role = plan.Suspect
		}
	}
	for _, c := range t.Costs {
		one := api.SignalView{Signal: c.Signal, Cost: c.Cost, Limit: c.Limit, Outlier: float64(c.Cost) > float64(c.Limit)}
		one.Spec.State = spec.Learning
		if mean := float64(c.Mean); !math.IsNaN(mean) {
			one.Spec.State, one.Spec.Mean = spec.Ready, mean
		}
		v.Costs = append(v.Costs, one)
	}
	return v, nil
}

// Tasks implements top.Agent.
func (d *distant) Tasks(ctx context.Context) ([]api.TaskView, error) {
	if !d.fresh {
		if _, err := d.Status(ctx); err != nil {
			return nil, err
		}
	}
	d.fresh = false
	return slices.Clone(d.tasks), nil
}

// Incidents implements top.Agent, for those that are open.
func (d *distant) Incidents(context.Context, logbook.Query) (api.Incidents, error) {
	return api.Incidents{Incidents: slices.Clone(d.open)}, nil
}

// Incident implements top.Agent.
func (d *distant) Incident(ctx context.Context, id string) (incident.Record, error) {
	all, _, err := d.Client.Incidents(ctx, cluster.IncidentQuery{ID: id, Machine: d.machine})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no incident %s on %s", id, d.machine)
	}
	if err != nil {
		return incident.Record{}, err
	}
	// The server returns all whose IDs contain it: that of the 12th of an instant contains that of the 1st.
	return all[max(0, slices.IndexFunc(all, func(inc incident.Record) bool { return inc.ID == id }))], nil
}

// Command implements top.Agent: the server passes it to the machine.
func (d *distant) Command(ctx context.Context, c command.Command) (api.Done, error) {
	replies, err := d.Client.Command(ctx, cluster.Command{Machine: d.machine, Command: c})
	switch {
	case err != nil:
		return api.Done{}, err
	case len(replies.Replies) == 0:
		return api.Done{Message: "no answer: it holds there from when the machine comes back"}, nil
	}
	r := replies.Replies[0]
	if !r.OK {
		return api.Done{}, errors.New(r.Message)
	}
	return api.Done{ID: r.Cap, Message: r.Message, Tasks: r.Tasks, Refused: r.Refused}, nil
}
