package enforce

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func all(Change) bool { return true }

// hung is a process that holds a journal with A in force, on a real disk.
func hung(t *testing.T, w *world) (dir string, e *Enforcer) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "journal")
	e, err := Open(dir, w)
	must(t, err)
	t.Cleanup(func() { _ = e.Close() }) // fails where the test took the journal away
	must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y")))
	return dir, e
}

func TestLookSeesWhatAnotherHolds(t *testing.T) {
	w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/bb": {"x"}})
	dir, e := hung(t, w)
	must(t, e.Apply(2000, w.change("B", "/cg/bb", "x")))
	_, err := e.Undo(3000, "A", "test")
	must(t, err)
	before, err := os.ReadFile(filepath.Join(dir, journalName))
	must(t, err)
	v, err := ReadJournal(dir)
	must(t, err)
	if len(v.Open) != 1 || v.Open[0].ID != "B" || v.Damage != "" {
		t.Errorf("Look says %+v", v)
	}
	must(t, os.WriteFile(filepath.Join(dir, journalName), before[:len(before)-5], 0o600))
	if v, err = ReadJournal(dir); err != nil || len(v.Open) != 2 || !strings.Contains(v.Damage, "truncated") {
		t.Errorf("of a truncated journal Look says %+v, %v", v, err)
	}
	if _, err := os.Stat(filepath.Join(dir, journalName+".corrupt-1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Look has written: %v", err)
	}
	if _, err := ReadJournal(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a journal: %v", err)
	}
}

// What was lifted for a hung process is not undone a second time by any process,
// also if the files hold quell's value again: then another process set it.
func TestLiftOnce(t *testing.T) {
	for _, next := range []string{"lift again", "wakes up", "restarts"} {
		t.Run(next, func(t *testing.T) {
			w := oneDir()
			before := maps.Clone(w.values)
			dir, e := hung(t, w)
			capped := maps.Clone(w.values)
			if out, err := RestoreOverdue(dir, w, 9000, func(Change) bool { return false }); err != nil || len(out) > 0 {
				t.Fatalf("lifted %v, %v; want nothing", out, err)
			}
			out, err := RestoreOverdue(dir, w, 9000, all)
			must(t, err)
			if len(out) != 1 || out[0].Result != Restored || !maps.Equal(w.values, before) {
				t.Fatalf("lifted %v, values %v", out, w.values)
			}
			w.values = maps.Clone(capped) // another process's own limit
			switch next {
			case "lift again":
				if out, err := RestoreOverdue(dir, w, 9500, all); err != nil || len(out) > 0 {
					t.Errorf("lifted %v, %v", out, err)
				}
			case "wakes up":
				out, err := e.Undo(9500, "A", "its time is over")
				if err != nil || out.Result != Restored || !strings.Contains(out.Note, "by quell-agent restore") {
					t.Errorf("undo: %+v, %v", out, err)
				}
			case "restarts":
				must(t, e.journal.close()) // as if killed
				again, err := Open(dir, w)
				must(t, err)
				if len(again.Active()) > 0 {
					t.Errorf("recovered %v", again.Active())
				}
				must(t, again.Close())
				if _, err := os.Stat(filepath.Join(dir, liftedName)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("what was lifted is still kept: %v", err)
				}
			}
			if !maps.Equal(w.values, capped) {
				t.Errorf("another process's limit was overwritten: %v", w.values)
			}
		})
	}
}

// A process that was stopped between its writes continues with them when it
// wakes up. They must be undone although RestoreOverdue ran before.
func TestLiftInTheMiddleOfAnApply(t *testing.T) {
	for _, at := range []string{"/cg/a/x", "/cg/a/y"} {
		w := oneDir()
		before := maps.Clone(w.values)
		dir := filepath.Join(t.TempDir(), "journal")
		e, err := Open(dir, w)
		must(t, err)
		inside := false
		w.write = func(file, v string) (string, error) {
			if file == at && !inside && strings.HasPrefix(v, "A-") {
				inside = true
				if _, err := RestoreOverdue(dir, w, 9000, all); err != nil {
					t.Error(err)
				}
			}
			return v, nil
		}
		must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y")))
		if !inside || w.values["/cg/a/y"] != "A-1" {
			t.Fatalf("values %v", w.values)
		}
		_, err = e.Undo(9000, "A", "its time is over")
		must(t, err)
		if !maps.Equal(w.values, before) {
			t.Errorf("stopped at %s: left %v", at, w.values)
		}
		must(t, e.Close())
	}
}

// A record of another lease or another cgroup does not apply to this one.
func TestLiftedIsOfOneChange(t *testing.T) {
	for name, edit := range map[string]func(*world, *Change){
		"lease":  func(_ *world, c *Change) { c.From++ },
		"cgroup": func(w *world, c *Change) { w.inodes["/cg/a"]++; c.Inode++ },
	} {
		w := oneDir()
		before := maps.Clone(w.values)
		dir, e := hung(t, w)
		_, err := RestoreOverdue(dir, w, 9000, all)
		must(t, err)
		_, err = e.Undo(9000, "A", "woke up")
		must(t, err)
		c := w.change("A", "/cg/a", "x")
		edit(w, &c)
		must(t, e.Apply(3000, c))
		if out, err := RestoreOverdue(dir, w, 9000, all); err != nil || len(out) != 1 || !maps.Equal(w.values, before) {
			t.Errorf("%s: %v, %v, values %v", name, out, err, w.values)
		}
	}
}

func TestOneLiftAtATime(t *testing.T) {
	w := oneDir()
	dir, _ := hung(t, w)
	d, err := rootDisk(dir)
	must(t, err)
	defer d.Close()
	must(t, d.acquire(liftLock))
	if _, err := RestoreOverdue(dir, w, 9000, all); !errors.Is(err, ErrLocked) || w.values["/cg/a/x"] != "A-0" {
		t.Errorf("a second one: %v, values %v", err, w.values)
	}
}
