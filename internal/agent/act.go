package agent

import (
	"cmp"
	"errors"
	"strings"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

// carryOut executes what the pipeline asks for, and what it asks for in response. The
// error joins all failures; the pipeline already knows of them.
func (a *Agent) carryOut(now sample.Millis) error {
	var errs []error
	for {
		r, more := a.pipeline.Ready()
		if !more {
			return errors.Join(errs...)
		}
		for i := range r.Findings {
			f := &r.Findings[i]
			a.stats.analyses++
			a.stats.findings[[2]string{string(f.Signal), f.Kind.String()}]++
			a.Log.Debug("anomaly", "victim", f.Victim.Name, "signal", f.Signal, "kind", f.Kind, "cost", f.Cost, "threshold", f.Threshold)
		}
		for _, act := range r.Actions {
			errs = append(errs, a.act(now, act))
		}
		if r.Offenders {
			a.degrade("offenders", a.disk.saveOffenders(a.offenders()))
		}
		for i := range r.Incidents {
			a.writeIncident(now, &r.Incidents[i])
		}
	}
}

// act executes one action and reports the result to the pipeline.
func (a *Agent) act(now sample.Millis, act plan.Action) error {
	switch act.Kind {
	case plan.Cap:
		err := a.applyCap(now, &act)
		a.audit(now, capEntry("cap", &act), err)
		a.pipeline.Applied(now, act.ID, err)
		return err
	case plan.Adjust:
		return a.adjustCap(now, act)
	}
	return a.undoCap(now, act.ID, act.Why)
}

// writeIncident records an incident that has changed.
func (a *Agent) writeIncident(now sample.Millis, c *pipeline.Change) {
	switch {
	case a.stats.incident(&c.Incident):
		a.Log.Warn("incident opened", "id", c.ID, "victim", c.Victim.Name, "signal", c.Signal, "kind", c.Kind,
			"cost", c.Cost, "threshold", c.Threshold, "reason", c.Reason, "advice", c.Advice, "not_done", c.NotDone)
	case c.Closed != 0:
		a.Log.Info("incident closed", "id", c.ID, "victim", c.Victim.Name, "outcome", c.Outcome)
	}
	record := incident.FromPlan(&c.Incident, &c.Chart)
	a.degrade("incident log", a.disk.incidents.Add(record))
	a.sendRecord(now, wire.Record_KIND_INCIDENT, record.ID, record)
}

// applyCap sets a cap. Afterwards act.Why also says what the cap does not limit.
func (a *Agent) applyCap(now sample.Millis, act *plan.Action) error {
	t := a.tasks[act.Task.Key]
	if t == nil || t.ended {
		return errors.New("the task has ended")
	}
	a.readPlacement(a.now(), t)
	dir, inode, writes, err := a.writes(t, *act)
	if err != nil {
		return err
	}
	if r := host.UnlimitedIO(writes); r != "" {
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

// undoCap ends a cap. If it cannot be undone now, it is retried when the enforcer says
// so (Due).
func (a *Agent) undoCap(now sample.Millis, id, why string) error {
	o, err := a.Enforcer.Undo(now, id, why)
	return a.recordUndo(now, id, why, o, err)
}

// adjustCap changes the rate of a cap: it restores the previous value and sets the new
// rate. Both steps go through the journal, so a crash between them leaves the task
// unlimited.
func (a *Agent) adjustCap(now sample.Millis, act plan.Action) error {
	const why = "the rate changes"
	o, err := a.Enforcer.Undo(now, act.ID, why)
	if err != nil || o.Result != enforce.Restored {
		return a.recordUndo(now, act.ID, why, o, err)
	}
	err = a.applyCap(now, &act)
	a.audit(now, capEntry("adjust", &act), err)
	if err != nil {
		a.pipeline.Applied(now, act.ID, err)
	}
	return err
}

// recordUndo records the result of undoing a cap.
func (a *Agent) recordUndo(now sample.Millis, id, why string, o enforce.Outcome, err error) error {
	if errors.Is(err, enforce.ErrUnknown) {
		delete(a.pendingUndo, id) // undone already, or never set
		a.pipeline.Lifted(now, id, false)
		return nil
	}
	if err != nil && !errors.Is(err, enforce.ErrJournal) {
		a.pendingUndo[id] = why
		a.stats.undoFailed++
		a.degrade("undoing cap "+id, err)
		return err
	}
	delete(a.pendingUndo, id)
	a.degrade("undoing cap "+id, nil)
	a.Log.Warn("cap ended", "task", o.Change.Task, "why", why, "result", o.Result, "note", o.Note)
	a.audit(now, endEntry(o.Change, why, o.Result), err)
	a.stats.capsEnded[o.Result.String()]++
	a.pipeline.Lifted(now, id, o.Result == enforce.TakenOver)
	return nil
}

// checkCaps ends caps whose limit another process changed. It also ends caps whose
// lease has expired, whatever the pipeline's state is: the journal decides.
func (a *Agent) checkCaps(now sample.Millis) {
	for _, id := range a.Enforcer.Check() {
		a.undoCap(now, id, "another process changed the limit, or the task ended")
	}
	for _, id := range a.Enforcer.Due(now) {
		a.undoCap(now, id, cmp.Or(a.pendingUndo[id], "the lease expired"))
	}
	a.carryOut(now)
	a.degrade("journal", a.Enforcer.Err())
}

// closeLeftOver closes the incidents that an earlier agent left open.
func (a *Agent) closeLeftOver(now sample.Millis) error {
	left, _, err := a.disk.incidents.List(logbook.Query{Open: true})
	errs := []error{a.disk.unread, err}
	for i := range left {
		inc, err := a.disk.incidents.Incident(left[i].ID) // the complete record
		if err != nil {
			errs = append(errs, err)
			continue
		}
		inc.End(now, "the agent was restarted")
		errs = append(errs, a.disk.incidents.Add(&inc))
		a.sendRecord(now, wire.Record_KIND_INCIDENT, inc.ID, &inc)
	}
	return errors.Join(errs...)
}
