package enforce

import (
	"errors"
	"maps"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// An undo that fails is not retried at each tick, and is never given up.
func TestStuckIsTriedLessAndLess(t *testing.T) {
	w := oneDir()
	before := maps.Clone(w.values)
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y")))
	stuck := true
	w.write = func(file, v string) (string, error) {
		if stuck && file == "/cg/a/x" {
			return "", syscall.EBUSY
		}
		return v, nil
	}
	var tried []sample.Millis
	tick := func(now sample.Millis) {
		for _, id := range append(e.Check(), e.Due(now)...) {
			tried = append(tried, now)
			if _, err := e.Undo(now, id, "lease over"); err == nil == stuck {
				t.Errorf("at %d: %v", now, err)
			}
		}
	}
	now := sample.Millis(9000)
	for ; now < 9000+600_000; now += 1000 {
		tick(now)
	}
	for i, want := range []sample.Millis{0, 1, 3, 7, 15, 31, 61, 91} {
		if got := tried[i] - 9000; got != want*1000 {
			t.Errorf("try %d after %d ms, want %d s", i, got, want)
		}
	}
	if n := len(tried); n != 24 {
		t.Errorf("%d tries in 10 minutes, want 24", n)
	}
	s := e.Stuck()
	if len(s) != 1 || s[0].Change.ID != "A" || s[0].Tries != len(tried) || s[0].Since != 9000 || s[0].Next <= now-1000 || !errors.Is(s[0].Err, syscall.EBUSY) {
		t.Errorf("Stuck says %+v", s)
	}
	if got := e.Due(s[0].Since - 1); len(got) != 1 {
		t.Error("a clock that was set back keeps a stuck change from being tried")
	}
	stuck = false
	for end := now + 30_000; now <= end; now += 1000 {
		tick(now)
	}
	if len(e.Active()) > 0 || len(e.Stuck()) > 0 || !maps.Equal(w.values, before) {
		t.Errorf("30 s after the obstacle went: active %v, values %v", e.Active(), w.values)
	}
}

// A change left by an earlier process is due regardless of its lease.
func TestLeftOverIsDue(t *testing.T) {
	w := oneDir()
	must(t, mustStart(t, w).Apply(2000, w.change("A", "/cg/a", "x")))
	e := mustStart(t, w.clone())
	if got := e.Due(2001); len(got) != 1 {
		t.Errorf("due: %v", got)
	}
}

// A stuck change ends at once with its cgroup.
func TestStuckEndsWithItsCgroup(t *testing.T) {
	w := oneDir()
	e := mustStart(t, w)
	must(t, e.Apply(2000, w.change("A", "/cg/a", "x", "y")))
	w.write = func(string, string) (string, error) { return "", syscall.EBUSY }
	if _, err := e.RestoreAll(3000, "stop"); !errors.Is(err, syscall.EBUSY) {
		t.Fatal(err)
	}
	if got := append(e.Check(), e.Due(3000)...); len(got) != 0 {
		t.Errorf("tried again at once: %v", got)
	}
	w.remove("/cg/a")
	if got := e.Check(); len(got) != 1 {
		t.Errorf("Check says %v of a cgroup that is gone", got)
	}
}
