package enforce

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The model checker: the process dies after every single step of a scripted
// life (each byte and fsync of the journal, each rename, each file written),
// somebody edits the machine, and the next start must do what the naive twin
// says: put back what nobody touched, leave alone the rest.

func scriptWorld() *world {
	return newWorld(map[string][]string{"/cg/a": {"x", "y", "z"}, "/cg/a/k": {"x"}, "/cg/bb": {"x", "y"}})
}

// script is one life with two changes at a time, an expiry and a second change
// of a cgroup that had one, each of all its files, one with the cgroup below. It
// ends early where the world does.
func script(w *world) error {
	e, err := w.start()
	if err != nil {
		return err
	}
	undo := func(id string) error { _, err := e.Undo(3000, id, "lease over"); return err }
	for _, step := range []func() error{
		func() error { return e.Apply(2000, w.change("A", "/cg/a", "x", "y", "z")) },
		func() error { return e.Apply(2000, w.change("B", "/cg/bb", "x", "y")) },
		func() error { return undo("A") },
		func() error { return e.Apply(4000, w.change("C", "/cg/a", "k/x", "y", "z", "x")) },
		func() error { _, err := e.RestoreAll(5000, "stop"); return err },
		e.Close,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// edit is what others do while the process is dead. theirs matches the
// directories that they made theirs by it: nothing there may be written.
type edit struct {
	name   string
	theirs string // "/cg/a" is that one alone, "/cg/a*" with all below it
	do     func(*world)
}

func (e edit) isTheirs(file string) bool {
	tree, whole := strings.CutSuffix(e.theirs, "*")
	dir := filepath.Dir(file)
	return dir == e.theirs || whole && (dir == tree || strings.HasPrefix(dir, tree+"/"))
}

func edits() []edit {
	all := []edit{
		{"none", "", func(*world) {}},
		{"reboot", "/cg*", func(w *world) { w.boot = "boot-2" }},
		{"power loss", "/cg*", func(w *world) { w.boot = "boot-2"; w.powerLoss() }},
		{"no y in a", "", func(w *world) { delete(w.values, "/cg/a/y") }},
	}
	w := scriptWorld()
	for _, f := range slices.Sorted(maps.Keys(w.values)) {
		all = append(all,
			edit{"foreign " + f, filepath.Dir(f), func(w *world) { w.values[f] = "77" }},
			edit{"reset " + f, "", func(w *world) { w.values[f] = scriptWorld().values[f] }})
	}
	for _, dir := range slices.Sorted(maps.Keys(w.inodes)) {
		all = append(all,
			edit{"removed " + dir, dir + "*", func(w *world) { w.remove(dir) }},
			// With the very values of ours, the worst case.
			edit{"made again " + dir, dir + "*", func(w *world) {
				for d := range w.inodes {
					if d == dir || strings.HasPrefix(d, dir+"/") {
						w.inodes[d] += 50
					}
				}
			}})
	}
	return all
}

// twin says what the files must hold in the end, from the state at the crash.
func twin(crashed *world, e edit) map[string]string {
	original := scriptWorld().values
	want := maps.Clone(crashed.values)
	for f := range want {
		if !e.isTheirs(f) {
			want[f] = original[f]
		}
	}
	return want
}

// guarded makes the world check every write as it happens.
func (w *world) guarded(t *testing.T, where string) {
	original := scriptWorld().values
	w.write = func(file, value string) (string, error) {
		if value == original[file] {
			if w.values[file] == value {
				t.Errorf("%s: %s written although it holds %s", where, file, value)
			}
			return value, nil
		}
		// A new value: what is on disk must know the way back by now.
		var data []byte
		if f := w.durable[journalName]; f != nil {
			data = f.synced
		}
		records, _ := parse(data)
		for _, c := range replay(records) {
			for _, v := range c.Writes {
				if v.File == file && v.New == value && v.Old == original[file] {
					return value, nil
				}
			}
		}
		t.Errorf("%s: %s=%s is not in the journal on disk", where, file, value)
		return value, nil
	}
}

// recoverFrom starts on w and restores; with a budget it dies on the way.
func recoverFrom(t *testing.T, w *world, budget int, where string) {
	w.budget, w.dead = budget, false
	w.guarded(t, where)
	e, err := w.start()
	if err == nil {
		_, err = e.RestoreAll(6000, "start")
	}
	if err == nil {
		if len(e.Active()) > 0 {
			t.Errorf("%s: still active: %v", where, e.Active())
		}
		err = e.Close()
	}
	if err != nil && !w.dead {
		t.Errorf("%s: %v", where, err)
	}
}

func checkEnd(t *testing.T, crashed, w *world, e edit, where string) {
	if want := twin(crashed, e); !maps.Equal(w.values, want) {
		t.Errorf("%s: files hold %v, want %v", where, w.values, want)
	}
	for _, l := range w.log {
		file, value, _ := strings.Cut(l, "=")
		if e.isTheirs(file) {
			t.Errorf("%s: wrote %s to what is not ours", where, l)
		}
		if value != scriptWorld().values[file] || crashed.values[file] == value {
			t.Errorf("%s: wrote %s, where %s was", where, l, crashed.values[file])
		}
	}
	n := len(w.log)
	recoverFrom(t, w, -1, where+", again")
	if len(w.log) != n || len(w.names) > 2 {
		t.Errorf("%s: a second restore wrote %v, left files %v", where, w.log[n:], slices.Sorted(maps.Keys(w.names)))
	}
}

func TestEveryCrash(t *testing.T) {
	whole := scriptWorld()
	whole.guarded(t, "no crash")
	must(t, script(whole))
	all := edits()
	lives, capped, torn := 0, 0, 0
	for budget := range whole.steps + 1 {
		boundary := slices.Contains(whole.ends, budget)
		if !boundary && budget%7 > 0 { // torn lines are alike
			continue
		}
		w := scriptWorld()
		w.budget = budget
		w.guarded(t, fmt.Sprint("life of ", budget))
		if err := script(w); (err == nil) != (budget == whole.steps) {
			t.Fatalf("budget %d of %d: %v", budget, whole.steps, err)
		}
		w.log = nil
		if !maps.Equal(w.values, scriptWorld().values) {
			capped++
		}
		if !boundary {
			torn++
		}
		for i, e := range all {
			// Within a torn line only the line's absence matters, which every
			// edit has met at the boundary: there they take turns.
			if !boundary && i > 0 && budget%len(all) != i {
				continue
			}
			crashed := w.clone()
			e.do(crashed)
			where := fmt.Sprintf("crash after %d steps, then %s", budget, e.name)
			end := crashed.clone()
			recoverFrom(t, end, -1, where)
			ends := end.ends
			checkEnd(t, crashed, end, e, where)
			lives++
			if !boundary {
				continue
			}
			// And the restore dies as well, before and after each effect.
			for _, second := range append([]int{0}, ends...) {
				where := fmt.Sprintf("%s, crash in restore after %d", where, second)
				end := crashed.clone()
				recoverFrom(t, end, second, where)
				end = end.clone()
				recoverFrom(t, end, -1, where)
				checkEnd(t, crashed, end, e, where)
				lives++
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Logf("%d crash points (%d torn, %d with a cap in force), %d edits, %d recoveries", whole.steps+1, torn, capped, len(all), lives)
	if capped == 0 || torn == 0 {
		t.Error("the script shows nothing")
	}
}
