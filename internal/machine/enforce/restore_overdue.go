package enforce

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

const (
	liftedName = "lifted"
	liftLock   = "lifted.lock"
)

// JournalView is the content of a journal that another process may hold.
type JournalView struct {
	Open   []Change // in force, or about to be, in the order they were made
	Damage string   // what could not be read, "" for nothing
}

// ReadJournal reads the journal in dir without its lock and changes nothing. Each line
// has a checksum and the journal is replaced as a whole, so the result is right
// also while another process writes: at worst a line that is being written is
// missing. Without a journal the error is fs.ErrNotExist.
func ReadJournal(dir string) (JournalView, error) {
	d, err := rootDisk(dir)
	if err != nil {
		return JournalView{}, fmt.Errorf("read journal: %w", err)
	}
	defer d.Close()
	open, bad, err := look(d, dir)
	if err != nil {
		return JournalView{}, fmt.Errorf("read journal in %s: %w", dir, err)
	}
	v := JournalView{Damage: describe(bad)}
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

// RestoreOverdue restores files in place of a process that holds the journal and hangs.
// which reports whether a change is overdue.
//
// Lift does not write to the journal. It records what it ended in a file next
// to it, so that neither the next RestoreOverdue nor the holder, when it wakes up, nor
// the next process restores the old value a second time, over a value set
// since. A change that the holder has not acknowledged is not recorded: the
// holder may still be about to make it, and then has to undo it.
//
// The outcomes are those of ended changes; the error names those that could not
// be ended. With ErrJournal they are ended, but that could not be recorded.
func RestoreOverdue(dir string, files Files, now sample.Millis, which func(Change) bool) ([]Outcome, error) {
	s, err := newSettler(files)
	if err != nil {
		return nil, fmt.Errorf("lift overdue changes: %w", err)
	}
	d, err := rootDisk(dir)
	if err != nil {
		return nil, fmt.Errorf("lift overdue changes: %w", err)
	}
	defer d.Close()
	if err := d.acquire(liftLock); err != nil {
		return nil, fmt.Errorf("lift overdue changes: %w", err)
	}
	open, _, err := look(d, dir)
	if err != nil {
		return nil, fmt.Errorf("lift overdue changes: read journal in %s: %w", dir, err)
	}
	var outcomes []Outcome
	var errs []error
	done := (&journal{disk: d, dir: dir}).lifted()
	for _, c := range slices.Backward(open) {
		if !which(c.Change) {
			continue
		}
		out, err := s.restoreChange(&c)
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

// liftedRecords are the records of the file next to the journal.
type liftedRecords []record

// lifted reads these records. What cannot be read counts as absent: an undo
// compares before it writes, and must not fail because of that.
func (j *journal) lifted() liftedRecords {
	data, err := j.disk.ReadFile(liftedName)
	if err != nil {
		return nil
	}
	records, _ := parse(data)
	return slices.DeleteFunc(records, func(r record) bool { return r.Kind != lifted })
}

// of returns the record of exactly this change, nil if there is none. An ID may
// be reused, but not with the same lease in the same cgroup.
func (l liftedRecords) of(c *entry) *record {
	for i := range l {
		if r := &l[i]; r.Change.ID == c.ID && r.Change.Inode == c.Inode && r.Change.From == c.From && r.Boot == c.boot {
			return r
		}
	}
	return nil
}

func (l liftedRecords) write(d disk) error {
	var text []byte
	for i := range l {
		line, err := l[i].line()
		if err != nil {
			return err
		}
		text = append(text, line...)
	}
	f, err := writeFile(d, liftedName, text)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("%w: record lifted changes: %w", ErrJournal, err)
	}
	return nil
}

// forgetLifted removes the file after the journal was rewritten without the
// lifted changes. A Lift that runs at the same time may write some of it again:
// its records are then of changes that are in no journal any more.
func (j *journal) forgetLifted() {
	if _, err := j.disk.ReadFile(liftedName); err == nil {
		// A file that stays does no harm, see of.
		_ = j.disk.Remove(liftedName)
	}
}

// outcome returns what RestoreOverdue recorded of the change.
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
