package counter

import (
	"os"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// A task that named no file is looked at again only once it has used CPU time. One that named a file
// is always: another task may write it.
func TestASleepingTaskIsNotLookedAt(t *testing.T) {
	p := newFakeProc(t)
	p.check(os.Mkdir(p.root+"/run", 0o755))
	p.process(7, 1, 1, "HOME=/")
	target := p.target("")
	members, listed := target.Members, 0
	target.Members = func() ([]int, error) { listed++; return members() }
	used := time.Second
	target.CPUTime = func() (time.Duration, error) { return used, nil }
	files := &progressFiles{proc: p.dir, target: &target, now: time.Now}
	look := func(wantListed, wantFiles int) {
		t.Helper()
		before := listed
		l := files.look(t.Context())
		if l.err != nil || l.asleep != (listed == before) || listed != wantListed || len(l.values) != wantFiles || !l.cpuKnown || l.cpu != used {
			t.Errorf("%+v, processes were listed %d times; want %d files and %d times", l, listed, wantFiles, wantListed)
		}
	}
	look(1, 0)
	look(1, 0)
	used++
	look(2, 0)
	p.process(8, 1, 1, "QUELL_PROGRESS=/run/a") // it has been started, which takes CPU time
	p.set("/run/a", 5)
	look(2, 0)
	used++
	look(3, 1)
	look(4, 1)
}

// A task that sleeps is looked at every hour, and soon once it is busy.
func TestASleepingTaskRests(t *testing.T) {
	p := newFakeProc(t)
	p.process(7, 1, 1, "HOME=/")
	c := still(t, p.dir, nil)
	target, used := p.target(""), time.Second
	target.CPUTime = func() (time.Duration, error) { return used, nil }
	p.check(c.Add(target))
	next := func() time.Duration {
		return c.order[0].transactions.(*reported).next.Sub(c.clock.now()) / time.Second * time.Second
	}
	window := func(used time.Duration) {
		c.begin(t)
		c.end(t, func(sample.TaskKey) (time.Duration, bool) { return used, true })
	}
	window(0)
	window(0)
	if d := next(); d < 1900*time.Second {
		t.Errorf("it sleeps, and the next look is in %v", d)
	}
	start(t, c)
	c.clock.at.Add(int64(10 * time.Second))
	stopped(t, c, func(sample.TaskKey) (time.Duration, bool) { return 99 * time.Millisecond, true })
	if d := next(); d < 1890*time.Second {
		t.Errorf("it hardly ran, and the next look is in %v", d)
	}
	start(t, c)
	c.clock.at.Add(int64(10 * time.Second))
	stopped(t, c, func(sample.TaskKey) (time.Duration, bool) { return 100 * time.Millisecond, true })
	if d := next(); d > 40*time.Second {
		t.Errorf("it is busy, and the next look is in %v", d)
	}
}
