package enforce

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// lateness is how long after its lease a cap may be in force if a single call has failed: a
// tick, and the first pause before the undo is tried again.
const lateness = 2 * time.Second

// faultKind is what happens to one call of a life.
type faultKind struct {
	name  string
	err   error
	after bool          // the call has had its effect
	delay time.Duration // it takes this long
}

func faultKinds() []faultKind {
	all := []faultKind{{name: "a delay of 3 s", delay: 3 * time.Second}, {name: "a delay of 5 min", delay: 5 * time.Minute}}
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EINTR,
		syscall.EAGAIN, syscall.EBUSY, syscall.EINVAL, syscall.EROFS, syscall.EACCES} {
		all = append(all, faultKind{name: errno.Error(), err: errno}, faultKind{name: errno.Error() + " after the effect", err: errno, after: true})
	}
	return all
}

// faultyLife is an enforcer with caps that begin and end, as an agent drives it, in which one
// call fails.
type faultyLife struct {
	*world
	t       *testing.T
	kind    faultKind
	nth     int // the call that fails
	calls   int
	life    int // calls until all is undone
	hit     string
	now     sample.Millis
	leases  map[string]sample.Millis // by new value
	overdue []string
	before  map[string]string
}

// call is made before each call; fails reports whether it is to fail with the kind's error.
func (l *faultyLife) call(what string) (fails bool) {
	l.calls++
	if l.calls-1 != l.nth {
		return false
	}
	l.hit = what
	l.now = l.now.Add(l.kind.delay)
	return l.kind.err != nil
}

func newFaultyLife(t *testing.T, kind faultKind, nth int) *faultyLife {
	l := &faultyLife{world: scriptWorld(), t: t, kind: kind, nth: nth, now: 1000, leases: map[string]sample.Millis{}}
	l.before = maps.Clone(l.values)
	made := func(what string) error {
		if l.call(what) {
			return l.kind.err
		}
		return nil
	}
	l.world.read, l.world.look = made, made
	l.world.hold = func([]string) error { return made("hold") }
	l.world.diskErr = made
	l.world.write = func(file, value string) (string, error) {
		if l.call("write " + file) {
			if l.kind.after {
				l.values[file] = value
			}
			return "", l.kind.err
		}
		return value, nil
	}
	return l
}

// check records the caps that are past their leases.
func (l *faultyLife) check() {
	for file, v := range l.values {
		if v == l.before[file] {
			continue
		}
		if until := l.leases[v]; l.now > until.Add(lateness) {
			l.overdue = append(l.overdue, fmt.Sprintf("%s holds %s %s after its lease", file, v, time.Duration(l.now-until)*time.Millisecond))
		}
	}
}

// play is the life. It survives every single fault, as an agent does; only Open may need a
// second try, which is a restart.
func (l *faultyLife) play() {
	e, err := l.start()
	if err != nil {
		if e, err = l.start(); err != nil {
			l.t.Errorf("the second start: %v", err)
			return
		}
	}
	tick := func() {
		for _, id := range append(e.Check(), e.Due(l.now)...) {
			_, _ = e.Undo(l.now, id, "lease over") // what fails is due again
		}
		l.check()
		l.now = l.now.Add(time.Second)
	}
	apply := func(id, dir string, files ...string) error {
		c := l.change(id, dir, files...)
		c.From, c.Until = l.now, l.now.Add(4*time.Second)
		for i := range c.Writes {
			c.Writes[i].Old = l.before[c.Writes[i].File]
			l.leases[c.Writes[i].New] = c.Until
		}
		return e.Apply(l.now, c)
	}
	refused := 0
	for round, c := range [][]string{{"A", "/cg/a", "x", "y", "z"}, {"B", "/cg/bb", "x", "y"}, {"C", "/cg/a", "k/x", "y", "z", "x"}} {
		if err := apply(c[0], c[1], c[2:]...); err != nil {
			refused++
		}
		tick()
		if round == 1 { // an operator ends it
			_, _ = e.Undo(l.now, "B", "operator")
		}
		for range 8 {
			tick()
		}
	}
	if refused > 1 {
		l.t.Errorf("%d changes were refused for one fault", refused)
	}
	if len(e.Active()) > 0 || !maps.Equal(l.values, l.before) {
		l.t.Errorf("in the end: active %v, values %v", e.Active(), l.values)
	}
	l.life = l.calls
	// The journal works again.
	if err := errors.Join(apply("D", "/cg/a", "x"), e.Err()); err != nil {
		l.t.Errorf("a later change: %v", err)
	}
	if _, err := e.RestoreAll(l.now, "stop"); err != nil {
		l.t.Errorf("stop: %v", err)
	}
	if err := e.Close(); err != nil {
		l.t.Errorf("close: %v", err)
	}
	if records, bad := parse(l.names[journalName].data); len(replay(records)) > 0 || len(bad) > 0 {
		l.t.Errorf("the journal in the end: open %v, damaged %q", replay(records), bad)
	}
}

// Every single call of a life fails once, with every error, before and after its effect, and
// takes long. No cap is in force past its lease by more than lateness (and the delay), and
// afterwards all works as before.
func TestSingleFaultLeavesNoCap(t *testing.T) {
	count := newFaultyLife(t, faultKind{}, -1)
	count.play()
	hits, kinds := 0, faultKinds()
	for _, kind := range kinds {
		for nth := range count.life {
			ok := t.Run("", func(t *testing.T) {
				l := newFaultyLife(t, kind, nth)
				if l.play(); l.hit == "" {
					t.Fatalf("call %d was not made", nth)
				}
				if hits++; len(l.overdue) > 0 || t.Failed() {
					t.Errorf("call %d, %s, with %s: %s", nth, l.hit, kind.name, strings.Join(l.overdue, "; "))
				}
			})
			if !ok {
				return
			}
		}
	}
	t.Logf("%d faults: %d calls with %d kinds", hits, count.life, len(kinds))
}
