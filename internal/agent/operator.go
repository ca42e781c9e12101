package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Operators' commands that come over the local socket (serve.go). Those that stand become
// overrides; reconcile makes them and the server's decisions take effect (decided.go).

// operator carries out commands of operators of this machine.
type operator struct {
	base
	standing *standing
	made     int // overrides
}

// operate carries out a command of an operator of this machine. The result is in the audit
// log when it returns; with an error api.Done says nothing. An invalid command is refused
// with an *command.InvalidError.
func (op *operator) operate(now sample.Millis, operator string, c *command.Command) (d api.Done, err error) {
	if err := c.Validate(); err != nil {
		op.standing.recorder.audit(now, invalidEntry(operator, c), err)
		return api.Done{}, err
	}
	switch {
	case c.Cap != nil:
		return op.cap(now, operator, c) // each task has its entry
	case c.Uncap != nil:
		d, err = op.uncap(now, operator, c)
	case c.Protect != nil:
		d, err = op.protect(now, operator, c, *c.Protect)
	case c.Unprotect != nil:
		d, err = op.protect(now, operator, c, *c.Unprotect)
	case c.Enforcement != nil:
		err = op.override(now, operator, *c)
		d.Message = "enforcement is " + op.pipeline.Policy().Mode.String()
	case c.Reset != nil:
		d, err = op.reset(now, c.Reset)
	default: // exactly one is set
		d, err = op.standing.pardon(now, c.Pardon.Job)
	}
	op.standing.recorder.audit(now, commandEntry(operator, c), err)
	return d, err
}

// override makes a command an override and makes it take effect.
func (op *operator) override(now sample.Millis, operator string, c command.Command) error {
	id := ""
	taken := func(d command.Decision) bool { return d.ID == id }
	for id == "" || slices.ContainsFunc(op.standing.overrides.Local, taken) {
		op.made++
		id = fmt.Sprintf("local-%s-%d", now.Time().Format("20060102T150405.000"), op.made)
	}
	op.standing.overrides.Local = command.Add(op.standing.overrides.Local, command.Decide(id, operator, now, c))
	if n := len(op.standing.overrides.Local); n > maxOverrides {
		op.standing.overrides.Local = op.standing.overrides.Local[n-maxOverrides:]
	}
	op.standing.overrides.changed = true
	return errors.Join(op.standing.reconcile(now), op.standing.save())
}

// maxOverrides bounds what is kept: the oldest go first.
const maxOverrides = 1000

// reset removes overrides.
func (op *operator) reset(now sample.Millis, r *command.Reset) (api.Done, error) {
	if p := r.Protect; p != nil && !p.IsGroup() {
		if t, err := op.tasks.find(p.Task); err == nil {
			r = &command.Reset{Protect: &command.Target{Task: t.Name.Text()}}
		}
	}
	n := len(op.standing.overrides.Local)
	op.standing.overrides.Local = command.Add(op.standing.overrides.Local, command.Decision{Command: command.Command{Reset: r}})
	switch {
	case len(op.standing.overrides.Local) < n:
	case slices.ContainsFunc(op.standing.overrides.server, func(d command.Decision) bool { return d.ID == r.Decision }):
		return api.Done{}, fmt.Errorf("%s is the server's: revoke it with --cluster, or with --machine", r)
	default:
		return api.Done{}, &notFoundError{"no override on this machine of " + r.String()}
	}
	op.standing.overrides.changed = true
	err := errors.Join(op.standing.reconcile(now), op.standing.save())
	m, from := op.standing.overrides.mode(op.standing.configured, now)
	return api.Done{Message: fmt.Sprintf("reset %s: enforcement is %s (%s)", r, m, from.Text())}, err
}

func (op *operator) cap(now sample.Millis, operator string, c *command.Command) (api.Done, error) {
	tasks, err := op.tasks.resolve(c.Cap.Target)
	if err != nil {
		op.standing.recorder.audit(now, commandEntry(operator, c), err)
		return api.Done{}, err
	}
	op.tasks.nest()
	return each(c.Cap.Target, tasks, "capped", func(t *task) (api.Done, error) {
		id, err := op.pipeline.Cap(now, t.Task, c.Cap.Terms, c.Cap.Incident, operator, c.Why)
		if err != nil {
			e := commandEntry(operator, c)
			if c.Cap.IsGroup() {
				e.Task = t.Name
			}
			op.standing.recorder.audit(now, e, err)
			return api.Done{}, err
		}
		if err := op.standing.actor.carryOut(now); err != nil { // the failure is in the audit log
			return api.Done{}, fmt.Errorf("cap %s: %w", t.Name, err)
		}
		return api.Done{ID: id, Message: fmt.Sprintf("capped %s to %g CPU-s/s until %s", t.Name, c.Cap.Rate, now.Add(time.Duration(c.Cap.For)).Time().Format(time.RFC3339))}, nil
	})
}

// uncap removes caps. A cap that the server has decided is not set again.
func (op *operator) uncap(now sample.Millis, operator string, c *command.Command) (api.Done, error) {
	tasks, err := op.tasks.resolve(*c.Uncap)
	if err != nil {
		return api.Done{}, err
	}
	d, err := op.standing.uncapTasks(now, *c.Uncap, tasks, c.Why)
	decided := func(d command.Decision) bool {
		return d.Cap != nil && slices.ContainsFunc(tasks, func(t *task) bool { return op.standing.names(d.Cap.Target, t) })
	}
	if err == nil && slices.ContainsFunc(op.standing.overrides.server, decided) {
		target := *c.Uncap
		if !target.IsGroup() {
			target.Task = tasks[0].Name.Text()
		}
		err = op.override(now, operator, command.Command{Why: c.Why, Uncap: &target})
	}
	return d, err
}

// protect sets whether other tasks may be capped for a target's tasks, present and future.
func (op *operator) protect(now sample.Millis, operator string, c *command.Command, target command.Target) (api.Done, error) {
	tasks, err := op.tasks.resolve(target)
	var none *notFoundError
	if err != nil && !(target.IsGroup() && errors.As(err, &none)) { // of a group it applies to future tasks
		return api.Done{}, err
	}
	on := c.Protect != nil
	d := api.Done{Message: fmt.Sprintf("%sed %s: %d tasks on this machine now", c.Kind(), target, len(tasks)), Tasks: len(tasks)}
	if !target.IsGroup() {
		target.Task = tasks[0].Name.Text()
		d = api.Done{Message: fmt.Sprintf("%sed %s", c.Kind(), target), Tasks: 1}
	}
	full := command.Command{Why: c.Why, For: c.For}
	if on {
		full.Protect = &target
	} else {
		full.Unprotect = &target
	}
	err = op.override(now, operator, full)
	if !target.IsGroup() && c.For == 0 && on == tasks[0].MayBeHelped() {
		op.standing.overrides.tidy(tasks[0], on, now)
		err = errors.Join(err, op.standing.save())
	}
	return d, err
}
