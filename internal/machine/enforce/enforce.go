package enforce

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Enforcer applies and undoes changes. It is used from one goroutine.
type Enforcer struct {
	restorer
	journal journal
	open    []entry // in the order they were made
	damage  string
}

// Open opens the journal in dir, made if needed, for this process alone:
// ErrLocked names the pid of the process that holds it. Changes that an earlier
// process left behind are active again until RestoreAll.
//
// A journal that cannot be written is an error, except if changes must be
// undone: then Err returns the reason, and Apply refuses.
func Open(dir string, files Files) (*Enforcer, error) {
	d, err := openDisk(dir)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	e, err := open(d, dir, files)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open journal in %s: %w", dir, err), d.Close())
	}
	return e, nil
}

func open(d disk, dir string, files Files) (*Enforcer, error) {
	s, err := newSettler(files)
	if err != nil {
		return nil, err
	}
	e := &Enforcer{restorer: s, journal: journal{disk: d, dir: dir}}
	if e.open, e.damage, err = e.journal.read(); err != nil {
		return nil, err
	}
	for i := range e.open {
		e.open[i].recovered = true
	}
	if err = e.journal.err; err == nil {
		err = e.journal.rewrite(e.open)
	}
	if err == nil {
		e.journal.forgetLifted()
	}
	if err != nil && len(e.open) == 0 {
		return nil, err
	}
	return e, nil
}

// Damage describes which part of the journal could not be read at Open and
// where a copy is kept, "" if all was read. What that part recorded is unknown.
func (e *Enforcer) Damage() string { return e.damage }

// Err returns why the journal cannot be written at present, nil if it can.
func (e *Enforcer) Err() error { return e.journal.err }

// Active returns the changes that are not undone, in the order they were made.
func (e *Enforcer) Active() []Change {
	all := make([]Change, len(e.open))
	for i := range e.open {
		all[i] = e.open[i].Change
	}
	return all
}

// Due returns the IDs of changes to undo now: those whose lease has expired,
// those that an earlier process left, and those whose undo failed (Stuck) once
// their pause is over. A change whose lease begins after now is due too: the
// clock was set back, so the end of its lease is unknown.
func (e *Enforcer) Due(now sample.Millis) []string {
	var ids []string
	for i := range e.open {
		c := &e.open[i]
		due := c.recovered || now >= c.Until || now < c.From
		if c.stuck.tries > 0 {
			due = c.stuck.ready(now)
		}
		if due {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// Check returns the IDs of changes that are no longer in force: a file of the
// change's cgroup has another value than ours, or the cgroup is gone. Undo then
// gives them up. A file that cannot be read is ignored. A change that is Stuck
// may be half undone, so only the loss of its cgroup counts.
func (e *Enforcer) Check() []string {
	var ids []string
	for i := range e.open {
		c := &e.open[i]
		if c.stuck.tries == 0 && !e.holds(c) {
			ids = append(ids, c.ID)
		} else if gone, _, err := e.gone(c); c.stuck.tries > 0 && gone && err == nil {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func (e *Enforcer) holds(c *entry) bool {
	if gone, _, err := e.gone(c); gone || err != nil {
		return !gone
	}
	for _, w := range c.Writes {
		if w.Inode != 0 {
			continue // below: a new value there does not change the limit
		}
		if v, err := e.files.ReadValue(w.File); isGone(err) || err == nil && v != w.New {
			return false
		}
	}
	return true
}

// Apply journals a change and makes it. After an error no file holds a new
// value, except if the undo failed as well: then the error says so and the
// change is in Active, to be undone again.
func (e *Enforcer) Apply(now sample.Millis, c Change) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Until <= now || c.From > now {
		return fmt.Errorf("change %q: %w: lease from %d until %d is not active at %d", c.ID, ErrRefused, c.From, c.Until, now)
	}
	for i := range e.open {
		if e.open[i].overlaps(&c) {
			return fmt.Errorf("change %q: %w %q", c.ID, ErrOverlap, e.open[i].ID)
		}
	}
	c.Writes = slices.Clone(c.Writes)
	e.open = append(e.open, entry{Change: c, boot: e.boot})
	if err := e.record(record{Kind: intend, At: now, Boot: e.boot, Change: &c}); err != nil {
		e.forget(c.ID)
		return fmt.Errorf("change %q: %w", c.ID, err)
	}
	err := e.verify(&c)
	if err == nil {
		err = e.hold(&c)
	}
	if err == nil { // the files were opened by their paths, where others could be by then
		err = e.identify(&c)
	}
	if err != nil {
		e.forget(c.ID)
		err = errors.Join(err, e.record(record{Kind: undone, At: now, ID: c.ID, Why: err.Error()}))
		return fmt.Errorf("change %q: %w", c.ID, err)
	}
	err = e.write(&c)
	if err == nil {
		e.open[len(e.open)-1].applied = true
		err = e.record(record{Kind: applied, At: now, ID: c.ID})
	}
	if err != nil {
		_, failed := e.Undo(now, c.ID, err.Error())
		return fmt.Errorf("change %q: %w", c.ID, errors.Join(err, failed))
	}
	return nil
}

// verify makes sure that the cgroups and old values are those of the change.
func (e *Enforcer) verify(c *Change) error {
	if err := e.identify(c); err != nil {
		return err
	}
	for _, w := range c.Writes {
		v, err := e.files.ReadValue(w.File)
		switch {
		case isGone(err):
			return fmt.Errorf("%w: %w", ErrGone, err)
		case err != nil:
			return fmt.Errorf("read old value: %w", err)
		case v != w.Old:
			return fmt.Errorf("%w: %s holds %q, not %q", ErrChanged, w.File, v, w.Old)
		}
	}
	return nil
}

// identify makes sure that the cgroups are those of the change.
func (e *Enforcer) identify(c *Change) error {
	for _, p := range c.byCgroup() {
		inode, err := e.files.Inode(p.dir)
		switch {
		case isGone(err):
			return fmt.Errorf("%w: %w", ErrGone, err)
		case err != nil:
			return fmt.Errorf("identify %s: %w", p.dir, err)
		case inode != p.inode:
			return fmt.Errorf("%w: %s has inode %d, not %d", ErrGone, p.dir, inode, p.inode)
		}
	}
	return nil
}

// write makes the writes in order, up to the first that fails.
func (e *Enforcer) write(c *Change) error {
	for _, w := range c.Writes {
		if err := e.files.WriteValue(w.File, w.New); err != nil {
			return fmt.Errorf("write new value: %w", err)
		}
		v, err := e.files.ReadValue(w.File)
		if err != nil {
			return fmt.Errorf("read new value: %w", err)
		}
		if v == w.New {
			continue
		}
		// The kernel spells the value differently, so compare would regard it
		// as another process's and never restore it: revert it at once.
		err = fmt.Errorf("%w: %s reads %q after writing %q", ErrNotTaken, w.File, v, w.New)
		if v != w.Old {
			err = errors.Join(err, e.files.WriteValue(w.File, w.Old))
		}
		return err
	}
	return nil
}

// Undo ends a change. An error with ErrJournal means that the outcome is valid
// but not on disk yet. After any other error the change is still active.
func (e *Enforcer) Undo(now sample.Millis, id, why string) (Outcome, error) {
	i := slices.IndexFunc(e.open, func(c entry) bool { return c.ID == id })
	if i < 0 {
		return Outcome{}, fmt.Errorf("undo %q: %w", id, ErrUnknown)
	}
	out, err := e.end(&e.open[i])
	if err != nil {
		e.open[i].stuck.failed(now, err)
		return Outcome{Change: e.open[i].Change}, fmt.Errorf("undo %q (still active): %w", id, err)
	}
	e.forget(id)
	err = e.record(record{Kind: undone, At: now, ID: id, Result: out.Result.String(), Why: why, Note: out.Note})
	if err != nil {
		return out, fmt.Errorf("undo %q: %w", id, err)
	}
	return out, nil
}

// end settles a change, unless RestoreOverdue did it while this process hung.
func (e *Enforcer) end(c *entry) (Outcome, error) {
	if r := e.journal.lifted().of(c); r != nil {
		return r.outcome(), nil
	}
	return e.restoreChange(c)
}

// RestoreAll ends every change, the newest first: this order passes through
// states that the kernel has accepted before. Changes that fail are retried as
// long as others succeed, then stay active and are named in the error.
func (e *Enforcer) RestoreAll(now sample.Millis, why string) ([]Outcome, error) {
	var outcomes []Outcome
	for {
		var failed []error
		before := len(outcomes)
		for _, c := range slices.Backward(e.Active()) {
			out, err := e.Undo(now, c.ID, why)
			if err == nil || errors.Is(err, ErrJournal) {
				outcomes = append(outcomes, out)
			}
			if err != nil && !errors.Is(err, ErrJournal) {
				failed = append(failed, err)
			}
		}
		if len(e.open) == 0 || len(outcomes) == before {
			// Only the present state of the journal matters: one record that
			// was written at the end makes up for those that were not.
			return outcomes, errors.Join(append(failed, e.journal.err)...)
		}
	}
}

// Close releases the journal. Active changes stay as they are: the caller
// decides whether to call RestoreAll.
func (e *Enforcer) Close() error {
	var err error
	for i := range e.open {
		if c := &e.open[i]; c.held {
			e.files.Release(c.Change.held()...)
			c.held = false
		}
	}
	if e.journal.f == nil {
		err = e.journal.rewrite(e.open)
	}
	return errors.Join(err, e.journal.close())
}

// record updates the journal to what is in memory; r is the last step.
func (e *Enforcer) record(r record) error {
	if e.journal.f == nil || r.Kind == undone && e.journal.full() {
		return e.journal.rewrite(e.open)
	}
	return e.journal.append(r)
}

// hold reserves what the undo needs: without that nothing is changed.
func (e *Enforcer) hold(c *Change) error {
	if err := e.files.Hold(c.held()...); err != nil {
		return fmt.Errorf("reserve files for the undo: %w", err)
	}
	e.open[len(e.open)-1].held = true
	return nil
}

func (e *Enforcer) forget(id string) {
	for i := range e.open {
		if c := &e.open[i]; c.ID == id && c.held {
			e.files.Release(c.Change.held()...)
		}
	}
	e.open = slices.DeleteFunc(e.open, func(c entry) bool { return c.ID == id })
}
