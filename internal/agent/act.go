package agent

import (
	"cmp"
	"errors"
	"strings"

	"github.com/quell-dev/quell/internal/enforce"
	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/logbook"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/wire"
)

// carryOut does what the planner asks for, and what it asks for upon that. The
// error joins what could not be done; the planner knows of it already.
func (a *Agent) carryOut(now sample.Millis, out plan.Output) error {
	var errs []error
	for _, act := range out.Actions {
		switch act.Kind {
		case plan.Cap:
			err := a.applyCap(now, &act)
			a.audit(now, capEntry("cap", &act), err)
			errs = append(errs, err, a.carryOut(now, a.planner.Applied(now, act.ID, err)))
		case plan.Uncap:
			errs = append(errs, a.undoCap(now, act.ID, act.Why))
		case plan.Adjust:
			errs = append(errs, a.adjustCap(now, act))
		}
	}
	if out.Offenders {
		a.degrade("offenders", a.disk.saveOffenders(a.offenders()))
	}
	for _, inc := range out.Incidents {
		switch {
		case a.stats.incident(inc):
			a.Log.Warn("incident opened", "id", inc.ID, "victim", inc.Victim.Name, "signal", inc.Signal, "kind", inc.Kind,
				"cost", inc.Cost, "threshold", inc.Threshold, "advice", inc.Advice, "reason", inc.Reason)
		case inc.Closed != 0:
			a.Log.Info("incident closed", "id", inc.ID, "victim", inc.Victim.Name, "outcome", inc.Outcome)
		}
		a.degrade("incident log", a.disk.incidents.Add(inc))
		a.tell(now, wire.Record_KIND_INCIDENT, inc.ID, inc)
	}
	return errors.Join(errs...)
}

// applyCap makes a cap; act.Why says afterwards also what that does not hold.
func (a *Agent) applyCap(now sample.Millis, act *plan.Action) error {
	t := a.tasks[act.Task.Key]
	if t == nil || t.ended {
		return errors.New("the task has ended")
	}
	a.look(a.now(), t)
	dir, inode, writes, err := a.writes(t, *act)
	if err != nil {
		return err
	}
	if r := host.Unheld(writes); r != "" {
		act.Why = strings.TrimPrefix(act.Why+"; "+r, "; ")
	}
	err = a.Enforcer.Apply(now, enforce.Change{ID: act.ID, Dir: dir, Inode: inode, Writes: writes, From: now,
		Until: act.Until, Task: act.Task.Name, Who: act.By, Why: act.Why})
	if err != nil {
		return err
	}
	t.capped = true
	a.Log.Warn("capped", "task", t.Name, "to", act.Limit(), "until", act.Until.Time(), "by", act.By, "why", act.Why)
	return nil
}

// undoCap ends a cap. One that cannot be undone now is tried again when the
// enforcer says so (Due).
func (a *Agent) undoCap(now sample.Millis, id, why string) error {
	o, err := a.Enforcer.Undo(now, id, why)
	return a.undone(now, id, why, o, err)
}

// adjustCap puts a cap at another rate: what was there before is put back and
// the new rate set, each through the journal, so that a crash between the two
// leaves the task free.
func (a *Agent) adjustCap(now sample.Millis, act plan.Action) error {
	const why = "another rate"
	o, err := a.Enforcer.Undo(now, act.ID, why)
	if err != nil || o.Result != enforce.Restored {
		return a.undone(now, act.ID, why, o, err)
	}
	err = a.applyCap(now, &act)
	a.audit(now, capEntry("adjust", &act), err)
	if err == nil {
		return nil
	}
	return errors.Join(err, a.carryOut(now, a.planner.Applied(now, act.ID, err)))
}

// undone takes in how undoing a cap went.
func (a *Agent) undone(now sample.Millis, id, why string, o enforce.Outcome, err error) error {
	if errors.Is(err, enforce.ErrUnknown) {
		delete(a.unlifted, id) // undone already, or never made
		return a.carryOut(now, a.planner.Lifted(now, id, false))
	}
	if err != nil && !errors.Is(err, enforce.ErrJournal) {
		a.unlifted[id] = why
		a.stats.undoFailed++
		a.degrade("lifting cap "+id, err)
		return err
	}
	delete(a.unlifted, id)
	a.degrade("lifting cap "+id, nil)
	a.Log.Warn("cap ended", "task", o.Change.Task, "why", why, "result", o.Result, "note", o.Note)
	a.audit(now, endEntry(o.Change, why, o.Result), err)
	a.stats.capsEnded[o.Result.String()]++
	return a.carryOut(now, a.planner.Lifted(now, id, o.Result == enforce.TakenOver))
}

// checkCaps ends caps that somebody else changed, and those whose lease is
// over whatever the planner thinks: the journal has the last word.
func (a *Agent) checkCaps(now sample.Millis) {
	for _, id := range a.Enforcer.Check() {
		a.undoCap(now, id, "somebody else changed the limit, or the task ended")
	}
	for _, id := range a.Enforcer.Due(now) {
		a.undoCap(now, id, cmp.Or(a.unlifted[id], "its time is over"))
	}
	a.degrade("journal", a.Enforcer.Err())
}

// closeLeftOver writes the end of incidents that an earlier agent left open.
func (a *Agent) closeLeftOver(now sample.Millis) error {
	left, _, err := a.disk.incidents.List(logbook.Query{Open: true})
	errs := []error{a.disk.unread, err}
	for i := range left {
		inc, err := a.disk.incidents.Incident(left[i].ID) // whole
		if err != nil {
			errs = append(errs, err)
			continue
		}
		inc.Closed, inc.Updated, inc.Reason = now, now, "the agent was restarted"
		for _, r := range inc.Rounds {
			if r.Ended == 0 {
				r.Ended, r.Outcome = now, plan.NotMeasured
				inc.Outcome = r.Outcome
			}
		}
		errs = append(errs, a.disk.incidents.Add(&inc))
		a.tell(now, wire.Record_KIND_INCIDENT, inc.ID, &inc)
	}
	return errors.Join(errs...)
}
