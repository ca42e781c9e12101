package agent

import (
	"strconv"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
)

func (r *rig) ticks() int {
	r.t.Helper()
	_, values := r.scrape()
	n, err := strconv.Atoi(values["quell_ticks_total"])
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// With nothing to do the loop sleeps; windows stay at their times, a new task is seen
// within a tick, and with a cap in force every tick runs.
func TestWakesForWhatIsDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t)
		news := make(chan struct{}, 1)
		m.wait = func() error { <-news; return nil }
		r := newRig(t, m, t.TempDir())
		r.add("/batch/idle-1", 0)
		r.start()
		defer r.stop()
		defer close(news)
		r.pass(500 * time.Millisecond)
		before := r.ticks()
		r.pass(10 * time.Minute)
		if n := r.ticks() - before; n < 60 || n > 85 { // every 10 s, and at window ends
			t.Errorf("%d ticks in 10 min of nothing", n)
		}
		if s := r.status(); s.Intervals != 10 {
			t.Errorf("%d windows in 10 min", s.Intervals)
		}

		before = r.ticks()
		r.add("/batch/new-1", 0.5)
		news <- struct{}{}
		r.pass(1100 * time.Millisecond)
		if s := r.status(); s.Tasks != 2 {
			t.Errorf("%d tasks a tick after one came", s.Tasks)
		}
		for range 10 { // frequent changes still cause at most one tick per tick interval
			r.pass(50 * time.Millisecond)
			select {
			case news <- struct{}{}:
			default: // as with inotify, one pending event suffices
			}
		}
		if n := r.ticks() - before; n > 3 {
			t.Errorf("%d ticks in 1.6 s of news", n)
		}

		r.pass(5 * time.Second)
		r.do(capping(command.Target{Task: "/batch/new-1"}, 0.1, "1m", "test"))
		before = r.ticks()
		r.pass(10 * time.Second)
		if n := r.ticks() - before; n < 10 {
			t.Errorf("%d ticks in 10 s with a cap in force", n)
		}
		r.pass(51 * time.Second)
		if s := r.status(); len(s.Caps) != 0 {
			t.Errorf("the lease has expired, and still %+v", s.Caps)
		}
	})
}
