package enforce

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quell-dev/quell/internal/sample"
)

const (
	liftedName = "lifted"
	liftLock   = "lifted.lock"
)

// View is a journal as somebody sees it who does not hold it.
type View struct {
	Open   []Change // in force, or about to be, in the order they were made
	Damage string   // what could not be read, "" for nothing
}

// Look reads the journal in dir without its lock and changes nothing. Its lines
// prove themselves and it is replaced as a whole, so this is right also while
// another process writes: at worst a line that is being written is missing.
// There is no journal: fs.ErrNotExist.
func Look(dir string) (View, error) {
	d, err := rootDisk(dir)
	if err != nil {
		return View{}, fmt.Errorf("look at journal: %w", err)
	}
	defer d.Close()
	open, bad, err := look(d, dir)
	if err != nil {
		return View{}, fmt.Errorf("look at journal in %s: %w", dir, err)
	}
	v := View{Damage: describe(bad)}
	for i := range open {
		v.Open = append(v.Open, open[i].Change)
	}
	return v, nil
}

func look(d disk, dir string) ([]entry, []string, error) {
	data, err := d.ReadFile(journalName)
	if err != nil {
		return nil, nil, err
	}
	records, bad := parse(data)
	lifted := (&journal{disk: d, dir: dir}).lifted()
	return slices.DeleteFunc(replay(records), func(e entry) bool { return lifted.of(&e) != nil }), bad, nil
}

// Lift puts files back in place of a process that holds the journal and does
// not do it: one that hangs. which says of a change that it is overdue.
//
// The journal stays its holder's. What Lift ended stands in a file beside it,
// so that neither the next Lift nor the holder, when it wakes up, nor the next
// process puts the old value back a second time, over what somebody set since.
// A change that the holder has not acknowledged is not written there: the holder
// may still be about to make it, and then has to undo it.
//
// The outcomes are of changes that are ended; the error names those that could
// not be. With ErrJournal they are ended, but that could not be written down.
func Lift(dir string, files Files, now sample.Millis, which func(Change) bool) ([]Outcome, error) {
	s, err := newSettler(files)
	if err != nil {
		return nil, fmt.Errorf("lift: %w", err)
	}
	d, err := rootDisk(dir)
	if err != nil {
		return nil, fmt.Errorf("lift: %w", err)
	}
	defer d.Close()
	if err := d.acquire(liftLock); err != nil {
		return nil, fmt.Errorf("lift: %w", err)
	}
	open, _, err := look(d, dir)
	if err != nil {
		return nil, fmt.Errorf("lift: look at journal in %s: %w", dir, err)
	}
	var outcomes []Outcome
	var errs []error
	done := (&journal{disk: d, dir: dir}).lifted()
	for _, c := range slices.Backward(open) {
		if !which(c.Change) {
			continue
		}
		out, err := s.settle(&c)
		if err != nil {
			errs = append(errs, fmt.Errorf("lift %q: %w", c.ID, err))
			continue
		}
		outcomes = append(outcomes, out)
		if c.applied {
			done = append(done, record{Kind: lifted, At: now, Boot: c.boot, Change: &c.Change, Result: out.Result.String(), Note: out.Note})
		}
	}
	if len(outcomes) > 0 {
		errs = append(errs, done.write(d))
	}
	return outcomes, errors.Join(errs...)
}

// lifts are the records of the file beside the journal.
type lifts []record

// lifted reads them. What cannot be read is as if it were not there: an undo
// compares before it writes, and must not fail for that.
func (j *journal) lifted() lifts {
	data, err := j.disk.ReadFile(liftedName)
	if err != nil {
		return nil
	}
	records, _ := parse(data)
	return slices.DeleteFunc(records, func(r record) bool { return r.Kind != lifted })
}

// of returns the record of this very change, nil if there is none. An ID may
// come again, but not with the same lease in the same cgroup.
func (l lifts) of(c *entry) *record {
	for i := range l {
		if r := &l[i]; r.Change.ID == c.ID && r.Change.Inode == c.Inode && r.Change.From == c.From && r.Boot == c.boot {
			return r
		}
	}
	return nil
}

func (l lifts) write(d disk) error {
	var text []byte
	for i := range l {
		line, err := l[i].line()
		if err != nil {
			return err
		}
		text = append(text, line...)
	}
	const name = liftedName + ".new"
	f, err := d.Create(name)
	if err == nil {
		if _, err = f.Write(text); err == nil {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = d.Rename(name, liftedName)
	}
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		return fmt.Errorf("%w: write down what was lifted: %w", ErrJournal, err)
	}
	return nil
}

// forgetLifted is for a journal that was just rewritten without what was
// lifted. A Lift that runs right now may write some of it again: its records
// are then of changes that are in no journal any more.
func (j *journal) forgetLifted() {
	if _, err := j.disk.ReadFile(liftedName); err == nil {
		// What stays does no harm, see of.
		_ = j.disk.Remove(liftedName)
	}
}

// outcome is what Lift made of the change.
func (r *record) outcome() Outcome {
	out := Outcome{Change: *r.Change, Note: fmt.Sprintf("by quell-agent restore at %s, while this agent hung", r.At.Time().Format("15:04:05 MST"))}
	if r.Note != "" {
		out.Note = r.Note + "; " + out.Note
	}
	if i := slices.Index(resultNames[:], r.Result); i >= 0 {
		out.Result = Result(i)
	}
	return out
}
