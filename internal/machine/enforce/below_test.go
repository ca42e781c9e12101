package enforce

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func twoLevels() *world {
	w := newWorld(map[string][]string{"/cg/a": {"x"}, "/cg/a/k": {"x"}})
	w.values["/cg/a/x"] = "2000"
	return w
}

// A cap with writes in cgroups below: an event in one of the cgroups does not
// keep the others from getting their old values back.
func TestEachCgroupOfAChangeIsLookedAfterAlone(t *testing.T) {
	own, below := "/cg/a/x=2000", "/cg/a/k/x=1000"
	tests := []struct {
		name string
		edit func(*world)
		want Result
		note string   // a part of it
		log  []string // writes of the undo
		held bool     // Check reports nothing
	}{
		{"no other writer", func(*world) {}, Restored, "", []string{own, below}, true},
		{"another process set the one below", func(w *world) { w.values["/cg/a/k/x"] = "7" }, Restored,
			`/cg/a/k/x holds "7", neither our "A-0" nor the old "1000"`, []string{own}, true},
		{"another process set its own", func(w *world) { w.values["/cg/a/x"] = "7" }, TakenOver, `/cg/a/x holds "7"`, []string{below}, false},
		{"the one below was removed", func(w *world) { w.remove("/cg/a/k") }, Restored, "/cg/a/k was removed", []string{own}, true},
		{"the one below was made again", func(w *world) { w.inodes["/cg/a/k"]++ }, Restored, "/cg/a/k was removed and made again", []string{own}, true},
		{"all was removed", func(w *world) { w.remove("/cg/a") }, Gone, "/cg/a was removed", nil, false},
		{"a controller was taken from the one below", func(w *world) { delete(w.values, "/cg/a/k/x") }, Restored, "its files are gone from /cg/a/k", []string{own}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := twoLevels()
			e := mustStart(t, w)
			must(t, e.Apply(2000, w.change("A", "/cg/a", "k/x", "x")))
			if d := cmp.Diff([]string{"/cg/a/k/x=A-0", "/cg/a/x=A-1"}, w.log); d != "" {
				t.Error(d)
			}
			tt.edit(w)
			if held := len(e.Check()) == 0; held != tt.held {
				t.Errorf("Check says held: %v, want %v", held, tt.held)
			}
			w.log = nil
			out, err := e.Undo(3000, "A", "lease over")
			must(t, err)
			if out.Result != tt.want || !strings.Contains(out.Note, tt.note) || tt.note == "" && out.Note != "" {
				t.Errorf("outcome %v %q, want %v %q", out.Result, out.Note, tt.want, tt.note)
			}
			if d := cmp.Diff(tt.log, w.log); d != "" {
				t.Error(d)
			}
		})
	}
}

// If a cgroup below was replaced by another, nothing is written anywhere.
func TestApplyRefusesWhereACgroupBelowIsAnother(t *testing.T) {
	w := twoLevels()
	e := mustStart(t, w)
	c := w.change("A", "/cg/a", "k/x", "x")
	w.inodes["/cg/a/k"]++
	if err := e.Apply(2000, c); err == nil || len(w.log) > 0 || len(e.Active()) > 0 {
		t.Errorf("applied with %v, wrote %v", err, w.log)
	}
}

// Another process set a limit lower than the old one below. Restoring that one is
// retried until the kernel accepts it, and no other file is touched meanwhile.
func TestWhatTheKernelDoesNotTakeBelowIsTriedAgain(t *testing.T) {
	w := twoLevels()
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("A", "/cg/a", "k/x", "x")))
	w.values["/cg/a/x"], w.log = "7", nil
	w.write = func(string, string) (string, error) { return "", syscall.EINVAL }
	if _, err := e.Undo(3000, "A", "lease over"); err == nil || len(e.Stuck()) != 1 {
		t.Fatalf("undo: %v, stuck %v", err, e.Stuck())
	}
	w.values["/cg/a/x"], w.write = "9000", nil
	out, err := e.Undo(4000, "A", "again")
	must(t, err)
	if d := cmp.Diff([]string{"/cg/a/k/x=1000"}, w.log); d != "" || out.Result != TakenOver {
		t.Errorf("%v %q\n%s", out.Result, out.Note, d)
	}
}
