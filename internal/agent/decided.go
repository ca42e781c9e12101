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
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/format/wire"
)

// What stands takes effect here: overrides of operators on this machine and the server's
// decisions.

const (
	// retryCaps is how soon a cap that was refused is tried again.
	retryCaps = time.Minute
	// clockSkew is how far the server's clock may be from this one without a cap that was set
	// before an uncap being taken for one that was set after.
	clockSkew = time.Minute
)

// outcome is what has become of a decision of the server here.
type outcome struct {
	reply   *wire.Reply               // never changed, only replaced
	once    bool                      // what is done once is done
	caps    map[sample.TaskKey]string // IDs of the caps that it has set
	refused map[sample.TaskKey]string // why others could not be set
}

// standing makes what stands take effect.
type standing struct {
	base
	overrides  *overrides
	actor      *actor
	recorder   *recorder
	configured plan.Mode
	followed   map[string]*outcome // by ID of the decision
	seen       int                 // taskSet.generation at the last reconcile
	due        sample.Millis       // when the next is due
	said       *wire.State
}

// isDue reports whether something may have changed since the last reconcile.
func (sd *standing) isDue(now sample.Millis) bool {
	return sd.overrides.changed || sd.seen != sd.tasks.generation || now >= sd.due
}

// reconcile makes what stands take effect. It may be called at any time.
func (sd *standing) reconcile(now sample.Millis) error {
	sd.overrides.changed, sd.seen = false, sd.tasks.generation
	var errs []error
	if sd.overrides.forgetEnded(now) {
		errs = append(errs, sd.save())
	}
	mode, from := sd.overrides.mode(sd.configured, now)
	if mode != sd.pipeline.Policy().Mode {
		sd.Log.Warn("enforcement mode changed", "mode", mode, "from", from.Text())
		sd.pipeline.SetMode(now, mode)
		errs = append(errs, sd.actor.carryOut(now))
	}
	sd.due = sd.overrides.nextEnd()
	// An uncap takes the place of decided caps: it removes them, rather than find none.
	for _, uncaps := range [...]bool{true, false} {
		for i := range sd.overrides.server {
			if d := &sd.overrides.server[i]; (d.Uncap != nil) == uncaps {
				sd.follow(now, d, from)
			}
		}
		if uncaps {
			sd.revoke(now)
		}
	}
	for _, t := range sd.tasks.byKey {
		sd.overrides.apply(&t.Task, t.found.Protected, now)
	}
	sd.actor.review(now)
	for _, u := range sd.overrides.unread {
		if sd.followed[u.reply.Id] == nil {
			sd.followed[u.reply.Id] = &outcome{reply: u.reply}
			sd.recorder.audit(now, unreadEntry(u.who, u.why), errors.New(cut(u.reply.Message)))
		}
	}
	sd.report(from)
	return errors.Join(errs...)
}

func (sd *standing) save() error { return sd.recorder.disk.save(overridesFile, sd.overrides) }

// revoke forgets the decisions that no longer stand, and ends the caps of those that were
// revoked.
func (sd *standing) revoke(now sample.Millis) {
	stands := map[string]bool{}
	for _, d := range sd.overrides.server {
		stands[d.ID] = true
	}
	for _, u := range sd.overrides.unread {
		stands[u.reply.Id] = true
	}
	for id, f := range sd.followed {
		if stands[id] {
			continue
		}
		delete(sd.followed, id)
		for _, c := range sd.pipeline.Caps() {
			if c.ID == f.caps[c.Task.Key] && sd.pipeline.Uncap(now, c.Task.Key, "the decision was revoked") == nil {
				sd.carryOut(now)
			}
		}
	}
}

// carryOut has failures retried by the actor, which has recorded them.
func (sd *standing) carryOut(now sample.Millis) { _ = sd.actor.carryOut(now) }

// follow carries out a decision of the server as far as it applies here now.
func (sd *standing) follow(now sample.Millis, d *command.Decision, from api.Origin) {
	f := sd.followed[d.ID]
	if f == nil {
		f = &outcome{caps: map[sample.TaskKey]string{}, refused: map[sample.TaskKey]string{}}
		sd.followed[d.ID] = f
	}
	if !d.Applies(sd.overrides.machine, now) { // those that have ended were dropped
		f.reply = &wire.Reply{Id: d.ID, None: true, Message: printable.Text("not on this machine: the roll-out is at " + d.Rollout.Text())}
		return
	}
	first := !f.once
	f.once = true
	switch { // f.reply is set the first time
	case d.Cap != nil:
		sd.followCap(now, d, f)
	case d.Enforcement != nil:
		holds := from.Decision != nil && from.Decision.ID == d.ID
		f.reply = &wire.Reply{Id: d.ID, Ok: holds, None: !holds, Message: fmt.Sprintf("enforcement is %s (%s)", sd.pipeline.Policy().Mode, from.From)}
	case d.Protect != nil:
		sd.followProtect(d, d.Protect, f)
	case d.Unprotect != nil:
		sd.followProtect(d, d.Unprotect, f)
	case !first: // the others are done once
	case d.Uncap != nil:
		sd.followUncap(now, d, f)
	case d.Pardon != nil:
		sd.followPardon(now, d, f)
	}
	if !first || d.Cap != nil && !f.reply.None { // each task has its entry
		return
	}
	var err error
	if !f.reply.Ok {
		err = errors.New(f.reply.Message)
	}
	sd.recorder.audit(now, commandEntry(byServer(d), &d.Command), err)
}

// byServer is the operator of a decision in the audit log.
func byServer(d *command.Decision) string { return d.Who + " (server)" }

// names reports whether a target names a task, by a suffix too if no other task has it.
func (sd *standing) names(target command.Target, t *task) bool {
	if target.IsGroup() {
		return target.Matches(&t.Task)
	}
	found, err := sd.tasks.find(target.Task)
	return err == nil && found == t
}

// uncappedSince returns an uncap of a task that was decided after a cap, nil if there is none.
func (sd *standing) uncappedSince(now sample.Millis, cap *command.Decision, t *task) *command.Decision {
	after := false // in the list, which says what came later at the same time
	for _, d := range sd.overrides.all() {
		after = after || d.ID == cap.ID
		if d.Uncap != nil && d.Stands(now) && (d.At > cap.At || d.At == cap.At && after) && sd.names(*d.Uncap, t) {
			return &d
		}
	}
	return nil
}

// followCap caps the tasks that a decision names and that it has not capped yet, until its end.
func (sd *standing) followCap(now sample.Millis, d *command.Decision, f *outcome) {
	tasks, err := sd.tasks.resolve(d.Cap.Target)
	left := min(d.Until.Sub(now), command.MaxLease) // by this machine's clock
	if err != nil || left < command.MinLease {
		message := "it ends"
		if err != nil {
			message = err.Error()
		}
		f.reply = &wire.Reply{Id: d.ID, None: true, Message: printable.Text(message)}
		return
	}
	terms := command.Terms{Rate: d.Cap.Rate, For: command.Duration(left)}
	done := &wire.Reply{Id: d.ID}
	f.reply = done
	var refused []string
	sd.tasks.nest()
	inForce := map[string]bool{}
	for _, c := range sd.pipeline.Caps() {
		inForce[c.ID] = true
	}
	for _, t := range tasks {
		id, err := f.caps[t.Key], error(nil)
		switch {
		case id == "":
			if id, err = sd.capFor(now, d, t, terms, f.refused); err != nil {
				sd.due = min(sd.due, now.Add(retryCaps))
			}
		case !inForce[id]: // it is not set again: quell does not fight
			err = fmt.Errorf("cap %s: it was ended before its time", t.Name)
		}
		if err != nil {
			refused = append(refused, printable.Text(err.Error()))
			continue
		}
		f.caps[t.Key] = id
		done.Tasks, done.Cap = done.Tasks+1, id
	}
	done.Ok, done.Refused = done.Tasks > 0, refused
	switch {
	case !done.Ok:
		done.Message, done.Refused = refused[0], refused[1:]
	case d.Cap.IsGroup():
		done.Cap, done.Message = "", printable.Text(fmt.Sprintf("capped %d of %d tasks on this machine (%s)", done.Tasks, len(tasks), d.Cap.Target))
	default:
		done.Message = printable.Text(fmt.Sprintf("capped %s to %g CPU-s/s until %s", tasks[0].Name, d.Cap.Rate, d.Until.Time().Format(time.RFC3339)))
	}
}

// capFor caps one task by a decision. Each new reason why it cannot is in the audit log.
func (sd *standing) capFor(now sample.Millis, d *command.Decision, t *task, terms command.Terms, refused map[sample.TaskKey]string) (id string, err error) {
	if u := sd.uncappedSince(now, d, t); u != nil {
		return "", fmt.Errorf("%s was uncapped by %s: %s", t.Name, u.Who, u.Why)
	}
	if id, err = sd.pipeline.Cap(now, t.Task, terms, d.Cap.Incident, byServer(d), d.Why); err == nil {
		delete(refused, t.Key)
		if err := sd.actor.carryOut(now); err != nil { // the failure is in the audit log
			return "", fmt.Errorf("cap %s: %w", t.Name, err)
		}
		return id, nil
	}
	if refused[t.Key] != err.Error() {
		refused[t.Key] = err.Error()
		e := commandEntry(byServer(d), &d.Command)
		e.Task = t.Name
		sd.recorder.audit(now, e, err)
	}
	return "", err
}

// followProtect counts the tasks that a protection, or its end, applies to. A task that is
// named by a suffix has its whole name from then on.
func (sd *standing) followProtect(d *command.Decision, target *command.Target, f *outcome) {
	tasks, err := sd.tasks.resolve(*target)
	if !target.IsGroup() {
		if err != nil {
			f.reply = &wire.Reply{Id: d.ID, None: true, Message: printable.Text(err.Error())}
			return
		}
		whole := command.Target{Task: tasks[0].Name.Text()} // not in place: others may read the target
		if target = &whole; d.Protect != nil {
			d.Protect = target
		} else {
			d.Unprotect = target
		}
	}
	if err != nil {
		tasks = nil
	}
	f.reply = &wire.Reply{Id: d.ID, Ok: true, Tasks: uint32(len(tasks)),
		Message: printable.Text(fmt.Sprintf("%sed %s: %d tasks on this machine now", d.Kind(), target, len(tasks)))}
}

// followUncap removes the caps that were set before the decision.
func (sd *standing) followUncap(now sample.Millis, d *command.Decision, f *outcome) {
	before := map[sample.TaskKey]bool{}
	for _, c := range sd.pipeline.Caps() {
		before[c.Task.Key] = c.From < d.At.Add(clockSkew)
	}
	tasks, err := sd.tasks.resolve(*d.Uncap)
	var capped []*task
	for _, t := range tasks {
		if err == nil && before[t.Key] {
			capped = append(capped, t)
		}
	}
	if err == nil && len(capped) == 0 && !d.Uncap.All {
		err = &notFoundError{fmt.Sprintf("no task on this machine that matches %s has a cap set by quell", d.Uncap)}
	}
	var done api.Done
	if err == nil {
		done, err = sd.uncapTasks(now, *d.Uncap, capped, d.Why)
	}
	f.reply = replyOf(d.ID, done, err)
}

// followPardon forgets caps that helped before the decision.
func (sd *standing) followPardon(now sample.Millis, d *command.Decision, f *outcome) {
	err := error(&notFoundError{"pardon " + d.Pardon.Job + ": no cap on it is known to have helped"})
	var done api.Done
	for _, o := range sd.pipeline.Offenders(now) {
		if string(o.Job) != d.Pardon.Job {
			continue
		}
		if newest := o.Helped[len(o.Helped)-1]; newest >= d.At.Add(clockSkew) {
			err = &notFoundError{"pardon " + d.Pardon.Job + ": a cap on it has helped since"}
		} else {
			done, err = sd.pardon(now, d.Pardon.Job)
		}
	}
	f.reply = replyOf(d.ID, done, err)
}

// replyOf is the outcome of a decision that is carried out once.
func replyOf(id string, done api.Done, err error) *wire.Reply {
	if err != nil {
		var none *notFoundError
		return &wire.Reply{Id: id, Message: printable.Text(err.Error()), None: errors.As(err, &none)}
	}
	r := &wire.Reply{Id: id, Ok: true, Message: printable.Text(done.Message), Cap: done.ID, Tasks: uint32(done.Tasks)}
	for _, why := range done.Refused {
		r.Refused = append(r.Refused, printable.Text(why))
	}
	return r
}

// report tells the server what has become of its decisions, if that has changed.
func (sd *standing) report(from api.Origin) {
	if sd.Uplink == nil {
		return
	}
	s := &wire.State{Agent: sd.Version, Mode: sd.pipeline.Policy().Mode.String(), From: string(from.From)}
	if from.Decision != nil {
		s.By = from.Decision.ID
	}
	for _, d := range sd.overrides.server {
		s.Outcomes = append(s.Outcomes, sd.followed[d.ID].reply)
	}
	for _, u := range sd.overrides.unread {
		s.Outcomes = append(s.Outcomes, sd.followed[u.reply.Id].reply)
	}
	if sd.said == nil || !wire.SameState(s, sd.said) {
		sd.said = s
		sd.Uplink.Report(s)
	}
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

// nothingCapped is no error: after an uncap of all tasks none has a cap.
const nothingCapped = "nothing is capped on this machine"

func (sd *standing) uncapTasks(now sample.Millis, target command.Target, tasks []*task, why string) (api.Done, error) {
	if target.IsGroup() { // only the tasks that have a cap
		tasks = slices.DeleteFunc(tasks, func(t *task) bool { return !sd.pipeline.Capped(t.Key) })
		switch {
		case len(tasks) > 0:
		case target.All:
			return api.Done{Message: nothingCapped}, nil
		default:
			return api.Done{}, &notFoundError{fmt.Sprintf("no task on this machine that matches %s has a cap set by quell", target)}
		}
	}
	d, err := each(target, tasks, "uncapped", func(t *task) (api.Done, error) {
		if err := sd.pipeline.Uncap(now, t.Key, why); err != nil {
			return api.Done{}, err
		}
		if err := sd.actor.carryOut(now); err != nil {
			return api.Done{}, fmt.Errorf("uncap %s: %w", t.Name, err)
		}
		return api.Done{Message: fmt.Sprintf("uncapped %s", t.Name)}, nil
	})
	if err == nil && target.IsGroup() {
		d.Message = fmt.Sprintf("uncapped %d tasks on this machine (%s)", d.Tasks, target)
	}
	return d, err
}

func (sd *standing) pardon(now sample.Millis, job string) (api.Done, error) {
	if err := sd.pipeline.Pardon(sample.JobName(job)); err != nil {
		return api.Done{}, err
	}
	return api.Done{Message: "removed job " + job + " from the repeat offenders"}, sd.recorder.disk.save(offendersFile, sd.pipeline.Offenders(now))
}
