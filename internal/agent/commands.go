package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
)

// What operators may have done, by the local socket (serve.go) and by the server
// (uplink.go) alike.

type notFoundError struct{ what string }

func (e *notFoundError) Error() string { return e.what }

// find resolves a task's name, or an unambiguous end of one.
func (a *Agent) find(name string) (*task, error) {
	var hits []*task
	for _, t := range a.tasks {
		switch full := string(t.Name); {
		case t.ended:
		case full == name:
			return t, nil
		case name != "" && strings.HasSuffix(full, "/"+strings.TrimPrefix(name, "/")):
			hits = append(hits, t)
		}
	}
	switch len(hits) {
	case 0:
		return nil, &notFoundError{fmt.Sprintf("no task is called %q", name)}
	case 1:
		return hits[0], nil
	}
	names := make([]string, len(hits))
	for i, t := range hits {
		names[i] = string(t.Name)
	}
	slices.Sort(names)
	return nil, &notFoundError{fmt.Sprintf("%q could be any of %s", name, strings.Join(names, ", "))}
}

// about says whom a request is about, for people and the audit log.
func about(name string, m api.Many) string {
	var all []string
	for _, part := range []struct{ what, value string }{{"", name}, {"job ", m.Job}, {"class ", m.Class}} {
		if part.value != "" {
			all = append(all, part.what+part.value)
		}
	}
	if m.All {
		all = append(all, "all tasks")
	}
	return strings.Join(all, " and ")
}

// meant resolves whom a request is about: one task, or all that have something in
// common, in the order of their names.
func (a *Agent) meant(name string, m api.Many) ([]*task, error) {
	if m == (api.Many{}) {
		t, err := a.find(name)
		return []*task{t}, err
	}
	n := 0
	for _, given := range []bool{name != "", m.Job != "", m.Class != "", m.All} {
		if given {
			n++
		}
	}
	if n != 1 {
		return nil, fmt.Errorf("%s: want one of a task, a job, a class, or all", about(name, m))
	}
	if m.Class != "" {
		if _, err := sample.ParseClass(m.Class); err != nil {
			return nil, err
		}
	}
	var all []*task
	for _, t := range a.tasks {
		if !t.ended && belongs(&t.Task, m) {
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return nil, &notFoundError{"no task here is of " + about("", m)}
	}
	slices.SortFunc(all, func(x, y *task) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return all, nil
}

// belongs reports whether a task is one of many.
func belongs(t *sample.Task, m api.Many) bool {
	return m.All || m.Job != "" && string(t.Job) == m.Job || m.Class != "" && t.Class.String() == m.Class
}

// each does something to each task that a request is about. The answer for one
// task is its own; of several it says how many, and which were refused; none of
// them is an error.
func (a *Agent) each(name string, m api.Many, what string, do func(*task) (api.Done, error)) (api.Done, error) {
	tasks, err := a.meant(name, m)
	if err != nil {
		return api.Done{}, err
	}
	if m == (api.Many{}) {
		d, err := do(tasks[0])
		d.Tasks = 1
		return d, err
	}
	var sum api.Done
	var errs []error
	for _, t := range tasks {
		if _, err := do(t); err != nil {
			sum.Refused = append(sum.Refused, err.Error())
			errs = append(errs, err)
			continue
		}
		sum.Tasks++
	}
	if sum.Tasks == 0 {
		return api.Done{}, errors.Join(errs...)
	}
	sum.Message = fmt.Sprintf("%s %d of the %d tasks here of %s", what, sum.Tasks, len(tasks), about("", m))
	return sum, nil
}

func (a *Agent) cap(now sample.Millis, who string, r api.CapRequest) (api.Done, error) {
	lasts, bad := time.ParseDuration(r.For)
	known := false
	d, err := a.each(r.Task, r.Many, "capped", func(t *task) (api.Done, error) {
		known = true
		id, err := "", bad
		if err != nil {
			err = fmt.Errorf("cap %s: for %q: want a duration such as 5m", t.Name, r.For)
		} else {
			id, err = a.pipeline.Cap(now, plan.Request{Task: t.Task, Rate: r.Rate, For: lasts, By: who, Why: r.Reason})
		}
		if err != nil {
			name := string(t.Name)
			if r.Task != "" {
				name = r.Task // as it was asked for
			}
			a.audit(now, who, "cap", plan.Action{Task: sample.Task{Name: sample.TaskName(name)}, Rate: r.Rate, Why: r.Reason}, err)
			return api.Done{}, err
		}
		if err := a.carryOut(now); err != nil { // it is in the audit log
			return api.Done{}, fmt.Errorf("cap %s: %w", t.Name, err)
		}
		return api.Done{ID: id, Message: fmt.Sprintf("capped %s to %g CPU-s/s until %s", t.Name, r.Rate, now.Add(lasts).Time().Format(time.RFC3339))}, nil
	})
	if err != nil && !known {
		a.audit(now, who, "cap", plan.Action{Task: sample.Task{Name: sample.TaskName(about(r.Task, r.Many))}, Rate: r.Rate, Why: r.Reason}, err)
	}
	return d, err
}

func (a *Agent) uncap(now sample.Millis, who string, r api.UncapRequest) (api.Done, error) {
	var capped int
	d, err := a.each(r.Task, r.Many, "uncapped", func(t *task) (api.Done, error) {
		if r.Many != (api.Many{}) && !a.pipeline.Capped(t.Key) {
			return api.Done{}, nil // of many, those that have a cap are meant
		}
		capped++
		if err := a.pipeline.Uncap(now, t.Key, r.Reason); err != nil {
			return api.Done{}, err
		}
		if err := a.carryOut(now); err != nil {
			return api.Done{}, fmt.Errorf("uncap %s: %w", t.Name, err)
		}
		return api.Done{Message: fmt.Sprintf("uncapped %s", t.Name)}, nil
	})
	if err == nil && r.Many != (api.Many{}) {
		d.Tasks = capped - len(d.Refused)
		d.Message = fmt.Sprintf("uncapped %d tasks of %s", d.Tasks, about("", r.Many))
		if capped == 0 {
			d, err = api.Done{}, &notFoundError{"no task here of " + about("", r.Many) + " has a cap of quell's"}
		}
	}
	a.audit(now, who, "uncap", plan.Action{Task: sample.Task{Name: sample.TaskName(about(r.Task, r.Many))}, Why: r.Reason}, err)
	return d, err
}

func (a *Agent) protect(now sample.Millis, who string, r api.ProtectRequest) (api.Done, error) {
	what := "protect"
	if r.Off {
		what = "unprotect"
	}
	tasks, err := a.meant(r.Task, r.Many)
	var none *notFoundError
	if r.Many != (api.Many{}) && errors.As(err, &none) {
		err = nil // it counts for those that come
	}
	if err == nil {
		name := ""
		if r.Many == (api.Many{}) {
			name = string(tasks[0].Name)
		}
		a.overrides.say(protection{Task: name, Many: r.Many, On: !r.Off})
		for _, t := range a.tasks {
			a.shield(t)
		}
		if name != "" && !r.Off == tasks[0].Helped() {
			a.overrides.tidy(tasks[0], !r.Off)
		}
		err = a.disk.saveOverrides(&a.overrides)
	}
	a.audit(now, who, what, plan.Action{Task: sample.Task{Name: sample.TaskName(about(r.Task, r.Many))}, Why: r.Reason}, err)
	switch {
	case err != nil:
		return api.Done{}, err
	case r.Many == (api.Many{}):
		return api.Done{Message: fmt.Sprintf("%sed %s", what, tasks[0].Name), Tasks: 1}, nil
	}
	return api.Done{Message: fmt.Sprintf("%sed %s, of which %d are here now", what, about("", r.Many), len(tasks)), Tasks: len(tasks)}, nil
}

// shield sets whether others may be capped for a task: as operators said, else as
// its rule says.
func (a *Agent) shield(t *task) {
	t.Protected, t.Unprotected = t.rule.Protected, false
	if on, said := a.overrides.said(&t.Task); said {
		t.Protected, t.Unprotected = on, !on
	}
}

func (a *Agent) setMode(now sample.Millis, who string, r api.ModeRequest) (api.Done, error) {
	m, err := plan.ParseMode(r.Mode)
	if err == nil {
		a.overrides.Mode = m.String()
		policy := a.pipeline.Policy()
		policy.Mode = m
		a.pipeline.SetMode(now, m, a.config.Tries(policy))
		err = errors.Join(a.carryOut(now), a.disk.saveOverrides(&a.overrides))
	}
	a.audit(now, who, "enforcement "+r.Mode, plan.Action{Why: r.Reason}, err)
	if err != nil {
		return api.Done{}, err
	}
	return api.Done{Message: "enforcement is " + m.String()}, nil
}

func (a *Agent) pardon(now sample.Millis, who string, r api.PardonRequest) (api.Done, error) {
	err := a.pipeline.Pardon(sample.JobName(r.Job))
	if err == nil {
		err = a.disk.saveOffenders(a.offenders())
	}
	a.audit(now, who, "pardon", plan.Action{Task: sample.Task{Name: sample.TaskName("job " + r.Job)}, Why: r.Reason}, err)
	if err != nil {
		return api.Done{}, err
	}
	return api.Done{Message: "forgot what " + r.Job + " did"}, nil
}

// overrides are what operators changed at run time.
type overrides struct {
	Mode string `json:"mode,omitempty"` // "" as configured
	// Protected is Protect as agents wrote it that knew tasks only.
	Protected []string     `json:"protected,omitempty"`
	Protect   []protection `json:"protect,omitempty"`
}

// protection is what an operator said of a task, or of many: whether others may be
// capped for them.
type protection struct {
	Task string `json:"task,omitempty"`
	api.Many
	On bool `json:"on"`
}

// rank is how narrow it is: the narrowest counts.
func (p *protection) rank() int {
	switch {
	case p.Task != "":
		return 4
	case p.Job != "":
		return 3
	case p.Class != "":
		return 2
	}
	return 1
}

func (p *protection) covers(t *sample.Task) bool {
	if p.Task != "" {
		return string(t.Name) == p.Task
	}
	return belongs(t, p.Many)
}

// said is what was said of a task, if something was.
func (o *overrides) said(t *sample.Task) (on, said bool) {
	best := 0
	for i := range o.Protect {
		if p := &o.Protect[i]; p.covers(t) && p.rank() > best {
			best, on = p.rank(), p.On
		}
	}
	return on, best > 0
}

// say notes what an operator says; it replaces what was said before of the same.
func (o *overrides) say(p protection) {
	o.Protect = slices.DeleteFunc(o.Protect, func(q protection) bool { return q.Task == p.Task && q.Many == p.Many })
	o.Protect = append(o.Protect, p)
}

// tidy forgets what was said of a task alone if without it the same holds: there
// may be no end of tasks.
func (o *overrides) tidy(t *task, on bool) {
	without := overrides{Protect: slices.DeleteFunc(slices.Clone(o.Protect), func(q protection) bool { return q.Task == string(t.Name) })}
	alone := t.Task
	alone.Protected, alone.Unprotected = t.rule.Protected, false
	if on, said := without.said(&alone); said {
		alone.Protected, alone.Unprotected = on, !on
	}
	if alone.Helped() == on {
		o.Protect = without.Protect
	}
}

// migrate takes over what an older agent wrote.
func (o *overrides) migrate() {
	for _, name := range o.Protected {
		o.say(protection{Task: name, On: true})
	}
	o.Protected = nil
}
