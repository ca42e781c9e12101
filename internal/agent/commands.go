package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Operators' commands, whether they come over the local socket (serve.go) or from the
// server (uplink.go).

type notFoundError struct{ what string }

func (e *notFoundError) Error() string { return e.what }

// find resolves a task's name, or an unambiguous suffix of one.
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
		return nil, &notFoundError{fmt.Sprintf("unknown task %q", name)}
	case 1:
		return hits[0], nil
	}
	names := make([]string, len(hits))
	for i, t := range hits {
		names[i] = string(t.Name)
	}
	slices.Sort(names)
	return nil, &notFoundError{fmt.Sprintf("task %q is ambiguous: it matches %s", name, strings.Join(names, ", "))}
}

// resolve finds the tasks that a target names: one task, or all tasks that match the
// target, sorted by name.
func (a *Agent) resolve(target command.Target) ([]*task, error) {
	if !target.IsGroup() {
		t, err := a.find(target.Task)
		return []*task{t}, err
	}
	var all []*task
	for _, t := range a.tasks {
		if !t.ended && target.Matches(&t.Task) {
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return nil, &notFoundError{"no task on this machine matches " + target.String()}
	}
	slices.SortFunc(all, func(x, y *task) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return all, nil
}

// each runs do for each of a target's tasks. For one task it returns do's own answer.
// For several it returns how many were done and which were refused; it is an error if
// none was done.
func each(target command.Target, tasks []*task, what string, do func(*task) (api.Done, error)) (api.Done, error) {
	if !target.IsGroup() {
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
	sum.Message = fmt.Sprintf("%s %d of %d tasks on this machine (%s)", what, sum.Tasks, len(tasks), target)
	return sum, nil
}

// operate carries out an operator's command, whichever interface it came through. The
// result is in the audit log when it returns. An invalid command is refused with an
// *command.InvalidError.
func (a *Agent) operate(now sample.Millis, operator string, c *command.Command) (api.Done, error) {
	if err := c.Validate(); err != nil {
		a.audit(now, invalidEntry(operator, c), err)
		return api.Done{}, err
	}
	switch {
	case c.Cap != nil:
		return a.cap(now, operator, c)
	case c.Uncap != nil:
		return a.uncap(now, operator, c)
	case c.Protect != nil:
		return a.protect(now, operator, c, *c.Protect, true)
	case c.Unprotect != nil:
		return a.protect(now, operator, c, *c.Unprotect, false)
	case c.Enforcement != nil:
		return a.setMode(now, operator, c)
	default: // exactly one is set
		return a.pardon(now, operator, c)
	}
}

func (a *Agent) cap(now sample.Millis, operator string, c *command.Command) (api.Done, error) {
	tasks, err := a.resolve(c.Cap.Target)
	if err != nil {
		a.audit(now, commandEntry(operator, c, c.Object()), err)
		return api.Done{}, err
	}
	return each(c.Cap.Target, tasks, "capped", func(t *task) (api.Done, error) {
		id, err := a.pipeline.Cap(now, t.Task, c.Cap.Terms, operator, c.Why)
		if err != nil {
			a.audit(now, commandEntry(operator, c, cmp.Or(c.Cap.Task, string(t.Name))), err) // as it was requested
			return api.Done{}, err
		}
		if err := a.carryOut(now); err != nil { // the failure is in the audit log
			return api.Done{}, fmt.Errorf("cap %s: %w", t.Name, err)
		}
		return api.Done{ID: id, Message: fmt.Sprintf("capped %s to %g CPU-s/s until %s", t.Name, c.Cap.Rate, now.Add(time.Duration(c.Cap.For)).Time().Format(time.RFC3339))}, nil
	})
}

func (a *Agent) uncap(now sample.Millis, operator string, c *command.Command) (d api.Done, err error) {
	defer func() { a.audit(now, commandEntry(operator, c, c.Object()), err) }()
	target := *c.Uncap
	tasks, err := a.resolve(target)
	if err != nil {
		return api.Done{}, err
	}
	if target.IsGroup() { // only the tasks that have a cap
		tasks = slices.DeleteFunc(tasks, func(t *task) bool { return !a.pipeline.Capped(t.Key) })
		if len(tasks) == 0 {
			return api.Done{}, &notFoundError{fmt.Sprintf("no task on this machine that matches %s has a cap set by quell", target)}
		}
	}
	d, err = each(target, tasks, "uncapped", func(t *task) (api.Done, error) {
		if err := a.pipeline.Uncap(now, t.Key, c.Why); err != nil {
			return api.Done{}, err
		}
		if err := a.carryOut(now); err != nil {
			return api.Done{}, fmt.Errorf("uncap %s: %w", t.Name, err)
		}
		return api.Done{Message: fmt.Sprintf("uncapped %s", t.Name)}, nil
	})
	if err == nil && target.IsGroup() {
		d.Message = fmt.Sprintf("uncapped %d tasks on this machine (%s)", d.Tasks, target)
	}
	return d, err
}

// protect sets whether other tasks may be capped for a target's tasks, present and future.
func (a *Agent) protect(now sample.Millis, operator string, c *command.Command, target command.Target, on bool) (api.Done, error) {
	tasks, err := a.resolve(target)
	var none *notFoundError
	if target.IsGroup() && errors.As(err, &none) {
		err = nil // it applies to future tasks
	}
	if err == nil {
		if !target.IsGroup() {
			target.Task = string(tasks[0].Name)
		}
		a.overrides.set(protection{Target: target, On: on})
		for _, t := range a.tasks {
			a.applyProtection(t)
		}
		if !target.IsGroup() && on == tasks[0].MayBeHelped() {
			a.overrides.tidy(tasks[0], on)
		}
		err = a.disk.saveOverrides(&a.overrides)
	}
	a.audit(now, commandEntry(operator, c, c.Object()), err)
	switch {
	case err != nil:
		return api.Done{}, err
	case !target.IsGroup():
		return api.Done{Message: fmt.Sprintf("%sed %s", c.Kind(), target), Tasks: 1}, nil
	}
	return api.Done{Message: fmt.Sprintf("%sed %s: %d tasks on this machine now", c.Kind(), target, len(tasks)), Tasks: len(tasks)}, nil
}

// applyProtection sets whether other tasks may be capped for a task: as operators set it, else
// as its rule says.
func (a *Agent) applyProtection(t *task) {
	t.Protected, t.Unprotected = t.rule.Protected, false
	if on, said := a.overrides.lookup(&t.Task); said {
		t.Protected, t.Unprotected = on, !on
	}
}

func (a *Agent) setMode(now sample.Millis, operator string, c *command.Command) (api.Done, error) {
	m, err := plan.ParseMode(c.Enforcement.Mode)
	if err == nil {
		a.overrides.Mode = m.String()
		a.pipeline.SetMode(now, m)
		err = errors.Join(a.carryOut(now), a.disk.saveOverrides(&a.overrides))
	}
	a.audit(now, commandEntry(operator, c, ""), err)
	if err != nil {
		return api.Done{}, err
	}
	return api.Done{Message: "enforcement is " + m.String()}, nil
}

func (a *Agent) pardon(now sample.Millis, operator string, c *command.Command) (api.Done, error) {
	err := a.pipeline.Pardon(sample.JobName(c.Pardon.Job))
	if err == nil {
		err = a.disk.saveOffenders(a.offenders())
	}
	a.audit(now, commandEntry(operator, c, c.Object()), err)
	if err != nil {
		return api.Done{}, err
	}
	return api.Done{Message: "removed job " + c.Pardon.Job + " from the repeat offenders"}, nil
}

// overrides are what operators changed at run time.
type overrides struct {
	Mode string `json:"mode,omitempty"` // "" as configured
	// Protected is Protect as written by older agents, which knew single tasks only.
	Protected []string     `json:"protected,omitempty"`
	Protect   []protection `json:"protect,omitempty"`
}

// protection is an operator's setting for one task, by its full name, or for many:
// whether other tasks may be capped for them.
type protection struct {
	command.Target
	On bool `json:"on"`
}

// lookup returns the setting that applies to a task, the most specific one, if there is one.
func (o *overrides) lookup(t *sample.Task) (on, said bool) {
	best := 0
	for i := range o.Protect {
		if p := &o.Protect[i]; p.Matches(t) && p.Rank() > best {
			best, on = p.Rank(), p.On
		}
	}
	return on, best > 0
}

// set records an operator's setting; it replaces an earlier one for the same target.
func (o *overrides) set(p protection) {
	o.Protect = slices.DeleteFunc(o.Protect, func(q protection) bool { return q.Target == p.Target })
	o.Protect = append(o.Protect, p)
}

// tidy removes the setting for a single task if the other settings give the same
// result: the number of tasks over time is unbounded.
func (o *overrides) tidy(t *task, on bool) {
	without := overrides{Protect: slices.DeleteFunc(slices.Clone(o.Protect), func(q protection) bool { return q.Task == string(t.Name) })}
	alone := t.Task
	alone.Protected, alone.Unprotected = t.rule.Protected, false
	if on, said := without.lookup(&alone); said {
		alone.Protected, alone.Unprotected = on, !on
	}
	if alone.MayBeHelped() == on {
		o.Protect = without.Protect
	}
}

// migrate converts what an older agent wrote.
func (o *overrides) migrate() {
	for _, name := range o.Protected {
		o.set(protection{Target: command.Target{Task: name}, On: true})
	}
	o.Protected = nil
}
