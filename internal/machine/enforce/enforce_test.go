package enforce

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/quell-dev/quell/internal/core/sample"
)

func oneDir() *world { return newWorld(map[string][]string{"/cg/a": {"x", "y", "z"}}) }

func TestApplyWritesInOrderAndUndoInReverse(t *testing.T) {
	w := oneDir()
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y", "z")))
	out, err := e.Undo(3000, "A", "lease over")
	must(t, err)
	if out.Result != Restored || out.Note != "" {
		t.Errorf("outcome %v %q, want restored", out.Result, out.Note)
	}
	want := []string{"/cg/a/x=A-0", "/cg/a/y=A-1", "/cg/a/z=A-2", "/cg/a/z=3000", "/cg/a/y=2000", "/cg/a/x=1000"}
	if d := cmp.Diff(want, w.log); d != "" {
		t.Error(d)
	}
	if _, err := e.Undo(3000, "A", "again"); !errors.Is(err, ErrUnknown) {
		t.Errorf("second undo: %v, want ErrUnknown", err)
	}
}

func TestApplyRefuses(t *testing.T) {
	tests := []struct {
		name string
		edit func(*world, *Change)
		want error
	}{
		{"no id", func(_ *world, c *Change) { c.ID = "" }, ErrRefused},
		{"no writes", func(_ *world, c *Change) { c.Writes = nil }, ErrRefused},
		{"no inode", func(_ *world, c *Change) { c.Inode = 0 }, ErrRefused},
		{"relative dir", func(_ *world, c *Change) { c.Dir = "cg/a" }, ErrRefused},
		{"lease over", func(_ *world, c *Change) { c.Until = 2000 }, ErrRefused},
		{"lease not begun", func(_ *world, c *Change) { c.From = 2001 }, ErrRefused},
		{"no old value", func(_ *world, c *Change) { c.Writes[1].Old = "" }, ErrRefused},
		{"no new value", func(_ *world, c *Change) { c.Writes[1].New = "" }, ErrRefused},
		{"file elsewhere", func(_ *world, c *Change) { c.Writes[1].File = "/cg/b/y" }, ErrRefused},
		{"file elsewhere, with an inode", func(_ *world, c *Change) { c.Writes[1].File, c.Writes[1].Inode = "/cg/b/y", 7 }, ErrRefused},
		{"file below without an inode", func(_ *world, c *Change) { c.Writes[1].File = "/cg/a/b/y" }, ErrRefused},
		{"file of its own with an inode", func(_ *world, c *Change) { c.Writes[1].Inode = c.Inode }, ErrRefused},
		{"files below with two inodes", func(_ *world, c *Change) {
			c.Writes[0].File, c.Writes[0].Inode = "/cg/a/b/x", 7
			c.Writes[1].File, c.Writes[1].Inode = "/cg/a/b/y", 8
		}, ErrRefused},
		{"files below alone", func(_ *world, c *Change) {
			c.Writes = c.Writes[:1]
			c.Writes[0].File, c.Writes[0].Inode = "/cg/a/b/x", 7
		}, ErrRefused},
		{"file by a detour", func(_ *world, c *Change) { c.Writes[1].File = "/cg/a/../a/y" }, ErrRefused},
		{"file twice", func(_ *world, c *Change) { c.Writes[1].File = "/cg/a/x" }, ErrRefused},
		{"id JSON cannot hold", func(_ *world, c *Change) { c.ID = "\xff" }, ErrRefused},
		{"value JSON cannot hold", func(_ *world, c *Change) { c.Writes[0].Old = "\xff" }, ErrRefused},
		{"file has changed", func(w *world, _ *Change) { w.values["/cg/a/z"] = "5" }, ErrChanged},
		{"file is missing", func(w *world, _ *Change) { delete(w.values, "/cg/a/z") }, ErrGone},
		{"cgroup is gone", func(w *world, _ *Change) { w.remove("/cg/a") }, ErrGone},
		{"cgroup is another", func(w *world, _ *Change) { w.inodes["/cg/a"]++ }, ErrGone},
		{"file unreadable", func(w *world, _ *Change) { w.read = func(string) error { return syscall.EACCES } }, syscall.EACCES},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := oneDir()
			e := mustStart(t, w)
			c := w.change("A", "/cg/a", "x", "y")
			c.Writes = append(c.Writes, w.change("A", "/cg/a", "z").Writes...)
			tt.edit(w, &c)
			if err := e.Apply(2000, c); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if len(w.log) > 0 || len(e.Active()) > 0 {
				t.Errorf("wrote %v, active %v; want neither", w.log, e.Active())
			}
			if again := mustStart(t, w.clone()); len(again.Active()) > 0 {
				t.Errorf("journal still has %v open", again.Active())
			}
		})
	}
}

func TestApplyRefusesWhatIsHeld(t *testing.T) {
	w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/bb": {"x"}})
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("A", "/cg/a", "x")))
	if err := e.Apply(2000, w.change("B", "/cg/a", "y", "x")); !errors.Is(err, ErrOverlap) || !strings.Contains(err.Error(), `"A"`) {
		t.Errorf("same file: %v, want ErrOverlap that names A", err)
	}
	if err := e.Apply(2000, w.change("A", "/cg/bb", "x")); !errors.Is(err, ErrOverlap) {
		t.Errorf("same id: %v, want ErrOverlap", err)
	}
	must(t, e.Apply(2000, w.change("C", "/cg/a", "y")))
}

func TestApplyUndoesWhatItMadeWhenAWriteFails(t *testing.T) {
	for _, bad := range []string{"x", "y", "z"} {
		w := oneDir()
		before := maps.Clone(w.values)
		w.write = func(file, v string) (string, error) {
			if file == "/cg/a/"+bad && strings.HasPrefix(v, "A-") {
				return "", syscall.EINVAL
			}
			return v, nil
		}
		e := mustStart(t, w)
		if err := e.Apply(2000, w.change("A", "/cg/a", "x", "y", "z")); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: got %v, want EINVAL", bad, err)
		}
		if d := cmp.Diff(before, w.values); d != "" || len(e.Active()) > 0 {
			t.Errorf("%s: active %v, values %s", bad, e.Active(), d)
		}
		if again := mustStart(t, w.clone()); len(again.Active()) > 0 {
			t.Errorf("%s: journal still has it open", bad)
		}
	}
}

func TestApplyTakesBackWhatReadsOtherwise(t *testing.T) {
	for name, read := range map[string]string{"spelt otherwise": "A 1", "not taken": "2000"} {
		w := oneDir()
		before := maps.Clone(w.values)
		w.write = func(_, v string) (string, error) {
			if v == "A-1" {
				return read, nil
			}
			return v, nil
		}
		e := mustStart(t, w)
		if err := e.Apply(2000, w.change("A", "/cg/a", "x", "y", "z")); !errors.Is(err, ErrNotTaken) {
			t.Errorf("%s: got %v, want ErrNotTaken", name, err)
		}
		if d := cmp.Diff(before, w.values); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestAWriteThatFailsStaysActiveUntilItCanBeUndone(t *testing.T) {
	w := oneDir()
	before := maps.Clone(w.values)
	busy := true
	w.write = func(file, v string) (string, error) {
		if busy && (v == "A-2" || v == "1000") {
			return "", syscall.EBUSY
		}
		return v, nil
	}
	e := mustStart(t, w)
	if err := e.Apply(2000, w.change("A", "/cg/a", "x", "y", "z")); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "still active") {
		t.Fatalf("got %v, want EBUSY and that it is still active", err)
	}
	if _, err := e.RestoreAll(3000, "stop"); !errors.Is(err, syscall.EBUSY) || len(e.Active()) != 1 {
		t.Fatalf("restore: %v, active %v", err, e.Active())
	}
	busy = false
	again := mustStart(t, w.clone())
	if len(again.Active()) != 1 {
		t.Fatal("a restart has forgotten the change")
	}
	out, err := e.RestoreAll(3000, "stop")
	must(t, err)
	if d := cmp.Diff(before, w.values); d != "" || len(out) != 1 || out[0].Result != Restored {
		t.Errorf("outcomes %v, values %s", out, d)
	}
}

func TestUndoThatIsNotTakenStaysActive(t *testing.T) {
	w := oneDir()
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("A", "/cg/a", "x")))
	w.write = func(string, string) (string, error) { return "A-0", nil }
	if _, err := e.Undo(3000, "A", "lease over"); !errors.Is(err, ErrNotTaken) || len(e.Active()) != 1 {
		t.Errorf("got %v, active %v", err, e.Active())
	}
}

func TestUndoOutcomes(t *testing.T) {
	tests := []struct {
		name string
		edit func(*world)
		want Result
		note string
		log  []string // writes of the undo
		held bool     // Check reports nothing
	}{
		{"no other writer", func(*world) {}, Restored, "", []string{"/cg/a/y=2000", "/cg/a/x=1000"}, true},
		{"one reset by hand", func(w *world) { w.values["/cg/a/x"] = "1000" }, Restored, "", []string{"/cg/a/y=2000"}, false},
		{"all reset by hand", func(w *world) { w.values["/cg/a/x"], w.values["/cg/a/y"] = "1000", "2000" },
			Restored, "already held the old values", nil, false},
		{"foreign first", func(w *world) { w.values["/cg/a/x"] = "7" }, TakenOver,
			`/cg/a/x holds "7", neither our "A-0" nor the old "1000"; /cg/a/y is left at our "A-1", was "2000"`, nil, false},
		{"foreign last", func(w *world) { w.values["/cg/a/y"] = "7" }, TakenOver,
			`/cg/a/y holds "7", neither our "A-1" nor the old "2000"; /cg/a/x is left at our "A-0", was "1000"`, nil, false},
		{"removed", func(w *world) { w.remove("/cg/a") }, Gone, "/cg/a was removed", nil, false},
		{"made again", func(w *world) { w.inodes["/cg/a"]++ }, Gone, "/cg/a was removed and made again", nil, false},
		{"one controller off", func(w *world) { delete(w.values, "/cg/a/y") }, Restored, "", []string{"/cg/a/x=1000"}, false},
		{"all controllers off", func(w *world) { delete(w.values, "/cg/a/x"); delete(w.values, "/cg/a/y") },
			Gone, "its files are gone from /cg/a", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := oneDir()
			e := mustStart(t, w)
			must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y")))
			tt.edit(w)
			if held := len(e.Check()) == 0; held != tt.held {
				t.Errorf("Check says held: %v, want %v", held, tt.held)
			}
			w.log = nil
			out, err := e.Undo(3000, "A", "lease over")
			must(t, err)
			if out.Result != tt.want || out.Note != tt.note || out.Change.ID != "A" {
				t.Errorf("outcome %v %q, want %v %q", out.Result, out.Note, tt.want, tt.note)
			}
			if d := cmp.Diff(tt.log, w.log); d != "" {
				t.Error(d)
			}
			if len(e.Active()) > 0 || len(e.Check()) > 0 {
				t.Errorf("still active: %v", e.Active())
			}
		})
	}
}

func TestAFileThatCannotBeReadDecidesNothing(t *testing.T) {
	w := oneDir()
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y")))
	w.read = func(string) error { return syscall.EIO }
	w.log = nil
	if got := e.Check(); len(got) > 0 {
		t.Errorf("Check says %v changed hands", got)
	}
	if _, err := e.Undo(3000, "A", "lease over"); !errors.Is(err, syscall.EIO) || len(w.log) > 0 || len(e.Active()) != 1 {
		t.Errorf("got %v, wrote %v, active %v", err, w.log, e.Active())
	}
}

func TestDue(t *testing.T) {
	w := newWorld(map[string][]string{"/cg/a": {"x"}, "/cg/bb": {"x"}})
	e := mustStart(t, w)
	a, b := w.change("A", "/cg/a", "x"), w.change("B", "/cg/bb", "x")
	a.From, a.Until, b.From, b.Until = 1000, 5000, 2000, 6000
	must(t, e.Apply(2000, a))
	must(t, e.Apply(2000, b))
	for now, want := range map[sample.Millis][]string{
		4999: nil, 5000: {"A"}, 5999: {"A"}, 6000: {"A", "B"},
		1999: {"B"}, 999: {"A", "B"}, // the clock was set back
	} {
		if got := e.Due(now); !slices.Equal(got, want) {
			t.Errorf("at %d: %v, want %v", now, got, want)
		}
	}
}

// A v1 kernel refuses a child's quota above its parent's (sched/core.c,
// tg_cfs_schedulable_down).
func TestRestoreAllFindsTheOrderTheKernelAccepts(t *testing.T) {
	// In the order in which they were made, the undo is accepted at once.
	refusals := 0
	for _, order := range [][]string{{"/cg/child", "/cg"}, {"/cg", "/cg/child"}} {
		w := newWorld(map[string][]string{"/cg": {"quota"}, "/cg/child": {"quota"}})
		w.values["/cg/quota"], w.values["/cg/child/quota"] = "900", "800"
		w.write = func(file, v string) (string, error) {
			quota := maps.Clone(w.values)
			quota[file] = v
			if len(quota["/cg/child/quota"]) > len(quota["/cg/quota"]) ||
				len(quota["/cg/child/quota"]) == len(quota["/cg/quota"]) && quota["/cg/child/quota"] > quota["/cg/quota"] {
				refusals++
				return "", syscall.EINVAL
			}
			return v, nil
		}
		e := mustStart(t, w)
		// The child is lowered first, as the kernel requires. Then the test
		// puts the changes in either order, as other histories would.
		for _, dir := range []string{"/cg/child", "/cg"} {
			c := w.change(dir, dir, "quota")
			c.Writes[0].New = map[string]string{"/cg": "300", "/cg/child": "200"}[dir]
			must(t, e.Apply(2000, c))
		}
		if e.open[0].Dir != order[0] {
			slices.Reverse(e.open)
		}
		out, err := e.RestoreAll(3000, "stop")
		must(t, err)
		if len(out) != 2 || w.values["/cg/quota"] != "900" || w.values["/cg/child/quota"] != "800" {
			t.Errorf("%v: %v", order, w.values)
		}
		if made := order[0] == "/cg/child"; made != (refusals == 0) {
			t.Errorf("%v: %d writes were refused on the way back", order, refusals)
		}
	}
}

// For every failure of the journal's disk at any time: no change is in force without
// a record, none is lost, an undo works, and space that becomes free is used again.
func TestAJournalThatFails(t *testing.T) {
	for _, op := range []string{"write", "sync", "truncate", "create", "rename", "syncdir"} {
		for skip := range 4 {
			t.Run(fmt.Sprint(op, skip), func(t *testing.T) {
				w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/bb": {"x"}})
				before := maps.Clone(w.values)
				e := mustStart(t, w)
				must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y")))
				n := 0
				w.diskErr = func(o string) error {
					if o != op {
						return nil
					}
					if n++; n > skip {
						return syscall.ENOSPC
					}
					return nil
				}
				capped := maps.Clone(w.values)
				err := e.Apply(2000, w.change("B", "/cg/bb", "x"))
				if err != nil {
					if !errors.Is(err, ErrJournal) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "/state") {
						t.Errorf("apply: %v, want ErrJournal that names the directory", err)
					}
					if d := cmp.Diff(capped, w.values); d != "" || len(e.Active()) != 1 || e.Err() == nil {
						t.Errorf("refused, but active %v, Err %v, values %s", e.Active(), e.Err(), d)
					}
				} else if op == "write" && skip == 0 || op == "sync" && skip == 0 {
					t.Error("applied without a record")
				}
				crashed := w.clone() // killed now, restarted on a disk with room
				if _, err := e.RestoreAll(3000, "stop"); err != nil && !errors.Is(err, ErrJournal) {
					t.Errorf("restore: %v", err)
				}
				if d := cmp.Diff(before, w.values); d != "" || len(e.Active()) > 0 {
					t.Errorf("restore with a bad journal: active %v, %s", e.Active(), d)
				}
				w.diskErr = nil
				must(t, e.Apply(4000, w.change("C", "/cg/a", "x")))
				if e.Err() != nil {
					t.Errorf("mended, but Err says %v", e.Err())
				}
				if again := mustStart(t, w.clone()); len(again.Active()) != 1 || again.Active()[0].ID != "C" || again.Damage() != "" {
					t.Errorf("journal has %v, damage %q; want C alone", again.Active(), again.Damage())
				}
				e = mustStart(t, crashed)
				if op != "truncate" && e.Damage() != "" {
					t.Errorf("a failed append left %s", e.Damage())
				}
				_, err = e.RestoreAll(5000, "start")
				must(t, err)
				if d := cmp.Diff(before, crashed.values); d != "" {
					t.Errorf("restore after a restart: %s", d)
				}
			})
		}
	}
}

func TestOpenOnADiskThatFails(t *testing.T) {
	full := func(op string) error {
		if op == "truncate" {
			return nil
		}
		return syscall.ENOSPC
	}
	t.Run("nothing to restore", func(t *testing.T) {
		w := oneDir()
		w.diskErr = full
		if _, err := w.start(); !errors.Is(err, ErrJournal) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("got %v, want ErrJournal for ENOSPC", err)
		}
	})
	for _, tail := range []string{"", "torn"} {
		t.Run("something to restore "+tail, func(t *testing.T) {
			w := oneDir()
			before := maps.Clone(w.values)
			must(t, mustStart(t, w).Apply(2000, w.change("A", "/cg/a", "x", "y", "z")))
			journal := w.names[journalName]
			journal.data = append(journal.data, tail...)
			text := string(journal.data)
			w.diskErr = full
			e := mustStart(t, w)
			if !errors.Is(e.Err(), ErrJournal) {
				t.Errorf("Err is %v, want ErrJournal", e.Err())
			}
			out, err := e.RestoreAll(3000, "start")
			if !errors.Is(err, ErrJournal) || len(out) != 1 || out[0].Result != Restored {
				t.Errorf("got %v, %v", out, err)
			}
			if d := cmp.Diff(before, w.values); d != "" {
				t.Error(d)
			}
			if err := e.Apply(4000, w.change("B", "/cg/a", "x")); !errors.Is(err, ErrJournal) {
				t.Errorf("apply: %v, want ErrJournal", err)
			}
			if err := e.Close(); !errors.Is(err, ErrJournal) {
				t.Errorf("close: %v, want ErrJournal", err)
			}
			if got := string(w.names[journalName].data); got != text {
				t.Errorf("the journal was touched:\n%s", got)
			}
		})
	}
}

func TestTheJournalStaysSmall(t *testing.T) {
	w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/bb": {"x"}})
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("keep", "/cg/bb", "x")))
	most := 0
	for i := range 1000 {
		id := fmt.Sprint("A", i)
		must(t, e.Apply(2000, w.change(id, "/cg/a", "x", "y")))
		_, err := e.Undo(3000, id, "lease over")
		must(t, err)
		most = max(most, len(w.names[journalName].data))
	}
	if most > slack+4096 || most < slack {
		t.Errorf("the journal grew to %d bytes, want about %d", most, slack)
	}
	if again := mustStart(t, w.clone()); len(again.Active()) != 1 || again.Active()[0].ID != "keep" {
		t.Errorf("rewriting lost what was active: %v", again.Active())
	}
}

// Without what the undo needs nothing is changed, and all that was reserved is given back
// however a change ends.
func TestReservesWhatTheUndoNeeds(t *testing.T) {
	w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/a/below": {"x"}})
	e := mustStart(t, w)
	before := maps.Clone(w.values)
	w.hold = func(files []string) error {
		if want := []string{"/cg/a/x", "/cg/a/y", "/cg/a/below/x"}; !slices.Equal(files, want) {
			t.Errorf("holds %q, want %q", files, want)
		}
		return syscall.EMFILE
	}
	c := w.change("A", "/cg/a", "below/x", "x", "y")
	if err := e.Apply(2000, c); !errors.Is(err, syscall.EMFILE) || len(e.Active()) > 0 || !maps.Equal(w.values, before) || w.held != 0 {
		t.Errorf("without a descriptor: %v, active %v, values %v, %d held", err, e.Active(), w.values, w.held)
	}
	w.hold = nil
	for name, end := range map[string]func(){
		"undo": func() { _, err := e.Undo(3000, "A", "test"); must(t, err) },
		"all":  func() { _, err := e.RestoreAll(3000, "test"); must(t, err) },
	} {
		must(t, e.Apply(2000, c))
		if w.held != 3 {
			t.Errorf("%s: %d held", name, w.held)
		}
		if end(); w.held != 0 {
			t.Errorf("%s: %d held afterwards", name, w.held)
		}
	}
	w.write = func(file, value string) (string, error) {
		if file == "/cg/a/y" && value == "A-2" {
			return "", syscall.EINVAL
		}
		return value, nil
	}
	if err := e.Apply(2000, c); !errors.Is(err, syscall.EINVAL) || w.held != 0 {
		t.Errorf("a write that the kernel refuses: %v, %d held", err, w.held)
	}
	w.write = nil
	must(t, e.Apply(2000, c))
	must(t, e.Close())
	if w.held != 0 {
		t.Errorf("%d held after Close", w.held)
	}
}

// TestACgroupMadeAgainMeanwhile: a cgroup that another has replaced, when its files were opened for the change, is left
// alone: the change would be that of the other, and after a restart of the agent no undo would find it.
func TestACgroupMadeAgainMeanwhile(t *testing.T) {
	for _, again := range []string{"/cg/a", "/cg/a/below"} {
		w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/a/below": {"x"}})
		e := mustStart(t, w)
		before := maps.Clone(w.values)
		w.hold = func([]string) error {
			w.inodes[again]++
			return nil
		}
		err := e.Apply(2000, w.change("A", "/cg/a", "below/x", "x", "y"))
		if !errors.Is(err, ErrGone) || len(e.Active()) > 0 || !maps.Equal(w.values, before) || w.held != 0 {
			t.Errorf("%s: %v, active %v, values %v, %d held", again, err, e.Active(), w.values, w.held)
		}
	}
}
