package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

// actor carries out what the pipeline asks for.
type actor struct {
	base
	// pendingUndo is why caps are to be undone that could not be undone yet, by id.
	pendingUndo map[string]string
	overruled   overruled
	profiles    map[string][]pipeline.Profile // by open incident
	placement   *placement
	recorder    *recorder
}

// writes sets the writes that limit a task as an action asks, and the cgroup to write to.
func (ac *actor) writes(t *task, act *plan.Action, c *enforce.Change) (err error) {
	switch {
	case !act.IO.IsZero():
		return ac.ioWrites(t, act, c)
	case act.Net > 0:
		return ac.netWrites(t, act, c)
	case t.places.Split:
		return fmt.Errorf("its processes are in different cgroups: %s", t.places.Reason)
	case t.places.CPU == "":
		return errors.New("it has no processes, so its CPU limit is unknown")
	}
	c.Dir, c.Inode, c.Writes, err = ac.Machine.CapWrites(t.places.CPU, act.Rate, ac.Config.Enforce.Period)
	return err
}

// ioWrites sets the writes that limit a task on every disk that it shares with the
// victim and that is still there. An existing limit of the task that is lower stays in force.
func (ac *actor) ioWrites(t *task, act *plan.Action, c *enforce.Change) error {
	place, err := t.cgroup.IOPlace()
	if err != nil {
		return err
	}
	var disks []host.Device
	if ac.SharedDisks != nil {
		disks = ac.SharedDisks(act.Victim, t.Key)
	}
	if len(disks) == 0 {
		return errors.New("no known disk is shared with the victim")
	}
	var gone error
	for _, disk := range disks {
		has, err := ac.Machine.IOLimit(place, disk)
		if err != nil {
			return err
		}
		limit := host.IOLimit{Rbps: lower(act.IO.Bytes, has.Rbps), Wbps: lower(act.IO.Bytes, has.Wbps),
			Riops: lower(act.IO.Ops, has.Riops), Wiops: lower(act.IO.Ops, has.Wiops)}
		if limit == (host.IOLimit{}) {
			continue
		}
		dir, inode, one, err := ac.Machine.IOWrites(place, disk, limit)
		if errors.Is(err, host.ErrNoDevice) {
			gone = err
			continue
		}
		if err != nil {
			return err
		}
		c.Dir, c.Inode, c.Writes = dir, inode, append(c.Writes, one...)
	}
	if len(c.Writes) == 0 {
		return fmt.Errorf("limit I/O of %s: %w", t.Name, cmp.Or(gone, host.ErrNotLower))
	}
	return nil
}

// netWrites sets the write that limits what a task sends.
func (ac *actor) netWrites(t *task, act *plan.Action, c *enforce.Change) error {
	switch {
	case t.Key.Hierarchy != sample.Unified:
		return errors.New("cannot limit its network traffic: the task is a v1 cgroup")
	case ac.NetWrites == nil:
		return errors.New("cannot limit network traffic on this machine")
	}
	c.Dir, c.Inode = t.cgroup.Dir(), t.Key.Inode
	c.Writes = ac.NetWrites(c.Dir, act.Net)
	return nil
}

// lower returns the wished limit if it is lower than the existing one, else 0, which
// keeps the existing one. 0 is no limit.
func lower(wish, has uint64) uint64 {
	if has != 0 && has <= wish {
		return 0
	}
	return wish
}

// carryOut executes what the pipeline asks for, and what it asks for in response. The
// error joins all failures; the pipeline already knows of them.
func (ac *actor) carryOut(now sample.Millis) error {
	var errs []error
	for {
		r, more := ac.pipeline.Ready()
		if !more {
			return errors.Join(errs...)
		}
		for i := range r.Findings {
			f := &r.Findings[i]
			ac.stats.analyses++
			ac.stats.findings[[2]string{string(f.Signal), f.Kind.String()}]++
			ac.Log.Debug("anomaly", "victim", f.Victim.Name, "signal", f.Signal, "kind", f.Kind, "cost", f.Cost, "threshold", f.Threshold)
		}
		for _, act := range r.Actions {
			errs = append(errs, ac.act(now, act))
		}
		if r.Offenders {
			ac.health.degrade("offenders", ac.recorder.disk.save(offendersFile, ac.pipeline.Offenders(now)))
		}
		for i := range r.Incidents {
			ac.writeIncident(now, &r.Incidents[i])
		}
	}
}

// act executes one action and reports the result to the pipeline.
func (ac *actor) act(now sample.Millis, act plan.Action) error {
	switch act.Kind {
	case plan.Cap:
		err := ac.applyCap(now, &act)
		ac.recorder.audit(now, capEntry("cap", &act), err)
		ac.pipeline.Applied(now, act.ID, err)
		return err
	case plan.Adjust:
		return ac.adjustCap(now, act)
	}
	return ac.undoCap(now, act.ID, act.Why)
}

// writeIncident records an incident that has changed.
func (ac *actor) writeIncident(now sample.Millis, c *pipeline.Change) {
	switch {
	case ac.stats.incident(&c.Incident):
		ac.Log.Warn("incident opened", "id", c.ID, "victim", c.Victim.Name, "signal", c.Signal, "kind", c.Kind,
			"cost", c.Cost, "threshold", c.Threshold, "reason", c.Reason, "advice", c.Advice, "not_done", c.NotDone)
	case c.Closed != 0:
		ac.Log.Info("incident closed", "id", c.ID, "victim", c.Victim.Name, "outcome", c.Outcome)
	}
	ac.link(c)
	ac.recorder.incident(now, (*incident.Record)(c))
}

// link adds links to profiles of the victim and of the suspects that are named. Those of a task
// that has ended since stay as they were.
func (ac *actor) link(c *pipeline.Change) {
	if ac.Config.Log.Profile == "" {
		return
	}
	before := ac.profiles[c.ID]
	about := []*sample.Task{&c.Victim}
	for i := range c.Suspects[:min(c.Antagonists, len(c.Suspects))] {
		about = append(about, &c.Suspects[i].Task)
	}
	for _, of := range about {
		if t := ac.tasks.byKey[of.Key]; t != nil {
			known := maps.Clone(t.found.Labels())
			if known == nil {
				known = map[string]string{}
			}
			known["task"], known["job"], known["machine"] = t.Name.String(), string(t.Job), c.Machine
			if url := ac.Config.Log.ProfileOf(c.Began.Time(), c.Updated.Time(), known); url != "" {
				c.Profiles = append(c.Profiles, pipeline.Profile{Task: t.Name, URL: url})
			}
		} else if i := slices.IndexFunc(before, func(p pipeline.Profile) bool { return p.Task == of.Name }); i >= 0 {
			c.Profiles = append(c.Profiles, before[i])
		}
	}
	if ac.profiles[c.ID] = c.Profiles; c.Closed != 0 {
		delete(ac.profiles, c.ID)
	}
}

// applyCap sets a cap. Afterwards act.Why also says what the cap does not limit.
func (ac *actor) applyCap(now sample.Millis, act *plan.Action) error {
	t := ac.tasks.byKey[act.Task.Key]
	if t == nil || t.ended {
		return errors.New("the task has ended")
	}
	if err := ac.placement.readPlacement(ac.clock.now(), t); errors.Is(err, host.ErrGone) {
		return err // what is at its former place in another hierarchy is another task's by now
	}
	switch ac.tasks.nest(); {
	case t.Holds != "":
		return fmt.Errorf("its cgroup contains %s, which may not be limited", t.Holds)
	case !t.MayBeCapped(): // what was decided may rest on what it was hours ago, as for groups
		return errors.New("it is latency-sensitive or never-cap now, and may not be limited")
	}
	c := enforce.Change{ID: act.ID, From: now, Until: act.Until, Task: act.Task.Name, Who: act.By}
	if err := ac.writes(t, act, &c); err != nil {
		return err
	}
	if c.Dir == t.cgroup.Dir() && c.Inode != t.Key.Inode { // its path is another task's by now
		return fmt.Errorf("limit %s: %w", t.Name, host.ErrGone)
	}
	if r := host.UnlimitedIO(c.Writes); r != "" {
		act.Why = strings.TrimPrefix(act.Why+"; "+r, "; ")
	}
	c.Why = act.Why
	if err := ac.Enforcer.Apply(now, c); err != nil {
		return err
	}
	t.capped = true
	ac.Log.Warn("capped", "task", t.Name, "to", act.Limit(), "until", act.Until.Time(), "by", act.By, "why", act.Why)
	return nil
}

// undoCap ends a cap. If it cannot be undone now, it is retried when the enforcer says
// so (Due).
func (ac *actor) undoCap(now sample.Millis, id, why string) error {
	o, err := ac.Enforcer.Undo(now, id, why)
	return ac.recordUndo(now, id, why, o, err)
}

// adjustCap changes the rate of a cap: it restores the previous value and sets the new
// rate. Both steps go through the journal, so a crash between them leaves the task
// unlimited.
func (ac *actor) adjustCap(now sample.Millis, act plan.Action) error {
	const why = "the rate changes"
	o, err := ac.Enforcer.Undo(now, act.ID, why)
	if err != nil || o.Result != enforce.Restored {
		return ac.recordUndo(now, act.ID, why, o, err)
	}
	err = ac.applyCap(now, &act)
	ac.recorder.audit(now, capEntry("adjust", &act), err)
	if err != nil {
		ac.pipeline.Applied(now, act.ID, err)
	}
	return err
}

// recordUndo records the result of undoing a cap.
func (ac *actor) recordUndo(now sample.Millis, id, why string, o enforce.Outcome, err error) error {
	if errors.Is(err, enforce.ErrUnknown) {
		delete(ac.pendingUndo, id) // undone already, or never set
		ac.pipeline.Lifted(now, id, false)
		return nil
	}
	if err != nil && !errors.Is(err, enforce.ErrJournal) {
		ac.pendingUndo[id] = why
		ac.stats.undoFailed++
		ac.health.degrade("undoing cap "+id, err)
		return err
	}
	delete(ac.pendingUndo, id)
	ac.health.degrade("undoing cap "+id, nil)
	result, theirs := ac.overruled.add(now, why, &o, ac.tasks)
	ac.Log.Warn("cap ended", "task", o.Change.Task, "why", why, "result", result, "note", o.Note)
	ac.recorder.audit(now, auditEntry{Who: "quell", What: "uncap", ID: o.Change.ID, Task: o.Change.Task, Why: why + ": " + result}, err)
	ac.stats.capsEnded[result]++
	ac.pipeline.Lifted(now, id, theirs)
	return nil
}

// checkCaps ends caps whose lease has expired, whatever the pipeline's state is: the journal
// decides. It also ends caps whose limit another process changed, after those: of an agent that
// hung, quell-agent restore has undone the caps that are overdue.
func (ac *actor) checkCaps(now sample.Millis) {
	for _, id := range ac.Enforcer.Due(now) {
		ac.undoCap(now, id, cmp.Or(ac.pendingUndo[id], "the lease expired"))
	}
	for _, id := range ac.Enforcer.Check() {
		ac.undoCap(now, id, overruledWhy)
	}
	ac.carryOut(now)
	ac.health.degrade("journal", ac.Enforcer.Err())
}

// review finds which tasks contain one that is spared, and ends the caps on those, and those for
// tasks that are no longer protected.
func (ac *actor) review(now sample.Millis) {
	ac.tasks.nest()
	for _, c := range ac.pipeline.Caps() {
		for _, k := range [...]sample.TaskKey{c.Task.Key, c.Victim} {
			if t := ac.tasks.byKey[k]; t != nil {
				ac.pipeline.Review(now, t.Task)
			}
		}
	}
	ac.carryOut(now)
}

// analyse processes anomalies, as many as the analysis rate allows.
func (ac *actor) analyse() {
	for {
		now := sample.At(ac.clock.now())
		if !ac.pipeline.Analyse(now) {
			return
		}
		ac.carryOut(now)
	}
}

// nameDistrusted lists the jobs whose reports about themselves are not believed as a problem.
func (ac *actor) nameDistrusted() {
	var all []error
	for _, r := range ac.pipeline.Distrusted(sample.At(ac.clock.now())) {
		all = append(all, fmt.Errorf("%s: what %s reports (%s) was contradicted %d times within a day", r.Job, r.Task, r.Signal, len(r.Contradicted)))
	}
	ac.health.degrade("jobs that are not believed", errors.Join(all[:min(len(all), maxNamedDistrusted)]...))
}

// maxNamedDistrusted bounds how many of them are named.
const maxNamedDistrusted = 8

// pending reports whether a cap is in force or still to be undone: another process may
// change its limit.
func (ac *actor) pending() bool {
	return len(ac.Enforcer.Active()) > 0 || len(ac.Enforcer.Stuck()) > 0 || len(ac.pendingUndo) > 0
}
