package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Operators' commands, whether they come over the local socket or from the server
// (serve.go).

// operator carries out operators' commands.
type operator struct {
	base
	overrides *overrides
	actor     *actor
	recorder  *recorder
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
// result is in the audit log when it returns; with an error api.Done says nothing. An
// invalid command is refused with an *command.InvalidError.
func (op *operator) operate(now sample.Millis, operator string, c *command.Command) (d api.Done, err error) {
	if err := c.Validate(); err != nil {
		op.recorder.audit(now, invalidEntry(operator, c), err)
		return api.Done{}, err
	}
	switch {
	case c.Cap != nil:
		return op.cap(now, operator, c) // each task has its entry
	case c.Uncap != nil:
		d, err = op.uncap(now, *c.Uncap, c.Why)
	case c.Protect != nil:
		d, err = op.protect(now, c.Kind(), *c.Protect, true)
	case c.Unprotect != nil:
		d, err = op.protect(now, c.Kind(), *c.Unprotect, false)
	case c.Enforcement != nil:
		d, err = op.setMode(now, c.Enforcement.Mode)
	default: // exactly one is set
		d, err = op.pardon(now, c.Pardon.Job)
	}
	op.recorder.audit(now, commandEntry(operator, c), err)
	return d, err
}

func (op *operator) cap(now sample.Millis, operator string, c *command.Command) (api.Done, error) {
	tasks, err := op.tasks.resolve(c.Cap.Target)
	if err != nil {
		op.recorder.audit(now, commandEntry(operator, c), err)
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
			op.recorder.audit(now, e, err)
			return api.Done{}, err
		}
		if err := op.actor.carryOut(now); err != nil { // the failure is in the audit log
			return api.Done{}, fmt.Errorf("cap %s: %w", t.Name, err)
		}
		return api.Done{ID: id, Message: fmt.Sprintf("capped %s to %g CPU-s/s until %s", t.Name, c.Cap.Rate, now.Add(time.Duration(c.Cap.For)).Time().Format(time.RFC3339))}, nil
	})
}

func (op *operator) uncap(now sample.Millis, target command.Target, why string) (api.Done, error) {
	tasks, err := op.tasks.resolve(target)
	if err != nil {
		return api.Done{}, err
	}
	if target.IsGroup() { // only the tasks that have a cap
		tasks = slices.DeleteFunc(tasks, func(t *task) bool { return !op.pipeline.Capped(t.Key) })
		if len(tasks) == 0 {
			return api.Done{}, &notFoundError{fmt.Sprintf("no task on this machine that matches %s has a cap set by quell", target)}
		}
	}
	d, err := each(target, tasks, "uncapped", func(t *task) (api.Done, error) {
		if err := op.pipeline.Uncap(now, t.Key, why); err != nil {
			return api.Done{}, err
		}
		if err := op.actor.carryOut(now); err != nil {
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
func (op *operator) protect(now sample.Millis, kind string, target command.Target, on bool) (api.Done, error) {
	tasks, err := op.tasks.resolve(target)
	var none *notFoundError
	if err != nil && !(target.IsGroup() && errors.As(err, &none)) { // of a group it applies to future tasks
		return api.Done{}, err
	}
	d := api.Done{Message: fmt.Sprintf("%sed %s: %d tasks on this machine now", kind, target, len(tasks)), Tasks: len(tasks)}
	if !target.IsGroup() {
		target.Task = tasks[0].Name.Text()
		d = api.Done{Message: fmt.Sprintf("%sed %s", kind, target), Tasks: 1}
	}
	op.overrides.set(protection{Target: target, On: on})
	for _, t := range op.tasks.byKey {
		op.overrides.apply(&t.Task, t.found.Protected)
	}
	op.actor.review(now)
	if !target.IsGroup() && on == tasks[0].MayBeHelped() {
		op.overrides.tidy(tasks[0], on)
	}
	return d, op.recorder.disk.save(overridesFile, op.overrides)
}

func (op *operator) setMode(now sample.Millis, mode string) (api.Done, error) {
	m, err := plan.ParseMode(mode)
	if err != nil {
		return api.Done{}, err
	}
	op.overrides.Mode = m.String()
	op.pipeline.SetMode(now, m)
	return api.Done{Message: "enforcement is " + m.String()}, errors.Join(op.actor.carryOut(now), op.recorder.disk.save(overridesFile, op.overrides))
}

func (op *operator) pardon(now sample.Millis, job string) (api.Done, error) {
	if err := op.pipeline.Pardon(sample.JobName(job)); err != nil {
		return api.Done{}, err
	}
	return api.Done{Message: "removed job " + job + " from the repeat offenders"}, op.recorder.disk.save(offendersFile, op.pipeline.Offenders(now))
}
