package enforce

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The model checker: the process dies after every single step of a scripted
// life (each byte and fsync of the journal, each rename, each file written).
// Then an edit changes the machine. The next start must do what the naive twin
// says: restore what no edit touched, leave the rest alone.

func scriptWorld() *world {
	return newWorld(map[string][]string{"/cg/a": {"x", "y", "z"}, "/cg/a/k": {"x"}, "/cg/bb": {"x", "y"}})
}

// original holds the values of the files of the script's world before it.
type original map[string]string

// script is one life with two changes at a time, an expiry and a second change
// of a cgroup. Each change is of all files of its cgroup, the last one also of
// the cgroup below. It ends early if the world does.
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

// edit is what other processes do while the process is dead. theirs matches the
// directories that belong to them afterwards: nothing there may be written.
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
			edit{"reset " + f, "", func(c *world) { c.values[f] = w.values[f] }})
	}
	for _, dir := range slices.Sorted(maps.Keys(w.inodes)) {
		all = append(all,
			edit{"removed " + dir, dir + "*", func(w *world) { w.remove(dir) }},
			// With the same values that quell wrote, the worst case.
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

// twin returns what the files must hold at the end, from the state at the crash.
func (o original) twin(crashed *world, e edit) map[string]string {
	want := maps.Clone(crashed.values)
	for f := range want {
		if !e.isTheirs(f) {
			want[f] = o[f]
		}
	}
	return want
}

// guard makes the world check every write as it happens.
func (o original) guard(t *testing.T, w *world, where string) {
	w.write = func(file, value string) (string, error) {
		if value == o[file] {
			if w.values[file] == value {
				t.Errorf("%s: %s written although it holds %s", where, file, value)
			}
			return value, nil
		}
		// A new value: by now the journal on disk must tell how to undo it.
		var data []byte
		if f := w.durable[journalName]; f != nil {
			data = f.synced
		}
		records, _ := parse(data)
		for _, c := range replay(records) {
			for _, v := range c.Writes {
				if v.File == file && v.New == value && v.Old == o[file] {
					return value, nil
				}
			}
		}
		t.Errorf("%s: %s=%s is not in the journal on disk", where, file, value)
		return value, nil
	}
}

// recoverFrom starts on w and restores; with a budget it dies meanwhile.
func (o original) recoverFrom(t *testing.T, w *world, budget int, where string) {
	w.budget, w.dead = budget, false
	o.guard(t, w, where)
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

func (o original) checkEnd(t *testing.T, crashed, w *world, e edit, where string) {
	if want := o.twin(crashed, e); !maps.Equal(w.values, want) {
		t.Errorf("%s: files hold %v, want %v", where, w.values, want)
	}
	for _, l := range w.log {
		file, value, _ := strings.Cut(l, "=")
		if e.isTheirs(file) {
			t.Errorf("%s: wrote %s to what is not ours", where, l)
		}
		if value != o[file] || crashed.values[file] == value {
			t.Errorf("%s: wrote %s, where %s was", where, l, crashed.values[file])
		}
	}
	n := len(w.log)
	o.recoverFrom(t, w, -1, where+", again")
	if len(w.log) != n || len(w.names) > 2 {
		t.Errorf("%s: a second restore wrote %v, left files %v", where, w.log[n:], slices.Sorted(maps.Keys(w.names)))
	}
}

func TestEveryCrash(t *testing.T) {
	whole, o := scriptWorld(), original(scriptWorld().values)
	o.guard(t, whole, "no crash")
	must(t, script(whole))
	all := edits()
	var mu sync.Mutex
	lives, capped, torn := 0, 0, 0
	// The points are distributed over subtests that run in parallel.
	const hands = 8
	t.Run("points", func(t *testing.T) {
		for hand := range hands {
			t.Run(fmt.Sprint(hand), func(t *testing.T) {
				t.Parallel()
				for budget := hand; budget <= whole.steps && !t.Failed(); budget += hands {
					boundary := slices.Contains(whole.ends, budget)
					if !boundary && budget%7 > 0 { // torn lines are alike
						continue
					}
					n, limited := o.crash(t, budget, whole.steps, boundary, all)
					mu.Lock()
					lives += n
					if limited {
						capped++
					}
					if !boundary {
						torn++
					}
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d crash points (%d torn, %d with a cap in force), %d edits, %d recoveries", whole.steps+1, torn, capped, len(all), lives)
	if capped == 0 || torn == 0 {
		t.Error("the script shows nothing")
	}
}

// crash ends the script after budget steps, at the boundary of two effects or
// within one, and recovers after each edit. It returns the number of recoveries
// and whether a cap was in force.
func (o original) crash(t *testing.T, budget, steps int, boundary bool, all []edit) (lives int, capped bool) {
	w := scriptWorld()
	w.budget = budget
	o.guard(t, w, fmt.Sprint("life of ", budget))
	if err := script(w); (err == nil) != (budget == steps) {
		t.Fatalf("budget %d of %d: %v", budget, steps, err)
	}
	w.log = nil
	for i, e := range all {
		// Of a torn line only its absence matters, which every edit is tested with
		// at the boundary. Within the line each point tests one edit in turn.
		if !boundary && i > 0 && budget%len(all) != i {
			continue
		}
		crashed := w.clone()
		e.do(crashed)
		where := fmt.Sprintf("crash after %d steps, then %s", budget, e.name)
		end := crashed.clone()
		o.recoverFrom(t, end, -1, where)
		ends := end.ends
		o.checkEnd(t, crashed, end, e, where)
		lives++
		if !boundary {
			continue
		}
		// The restore is killed as well, before and after each effect: after each crash and each edit
		// at a third of its effects, in turn.
		for k, second := range append([]int{0}, ends...) {
			if (k+i+budget)%3 != 0 {
				continue
			}
			where := fmt.Sprintf("%s, crash in restore after %d", where, second)
			end := crashed.clone()
			o.recoverFrom(t, end, second, where)
			end = end.clone()
			o.recoverFrom(t, end, -1, where)
			o.checkEnd(t, crashed, end, e, where)
			lives++
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	return lives, !maps.Equal(w.values, o)
}
