package agent

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// blind measures the CPU usage of tasks in stretches of time in which nothing is counted, one
// in each period, as long as a window and at a random moment as well. A task that behaves
// only in windows shows itself there (pipeline.Compare).
type blind struct {
	base
	recorder *recorder
	period   time.Time // the beginning of that of the next or the open stretch; zero: none yet
	next     time.Time
	start    time.Time
	open     bool
	// window and stretch: the usages of one are there and were not compared yet.
	window, stretch bool
}

// random reports whether windows open at random moments. A window that takes more than
// half of its period has not enough room for that.
func (b *base) random() bool {
	c := &b.Config.Sampling
	return b.Random != nil && 2*(c.Duration+b.Config.Tick) <= c.Period
}

// periodAfter is the beginning of the period after one, or of the present one if the loop was
// so late.
func periodAfter(begin, now time.Time, period time.Duration) time.Time {
	return begin.Add(max(1, now.Sub(begin)/period) * period)
}

// nextDue is when tick next has something to do.
func (b *blind) nextDue() time.Time {
	if b.open {
		return b.start.Add(b.Config.Sampling.Duration)
	}
	return b.next
}

// tick begins and ends stretches.
func (b *blind) tick(now time.Time) {
	if !b.random() {
		return
	}
	if b.period.IsZero() {
		b.period = now
		b.draw(now)
	}
	if due := !now.Add(b.Config.Tick / 2).Before(b.nextDue()); !due {
		return
	}
	if !b.open {
		b.open, b.start = true, now
		b.sweep(func() {
			for _, t := range b.tasks.order {
				t.blind.began = !t.ended && t.readUsage() == nil
				t.blind.from = t.usageNow.CPU
			}
		})
		return
	}
	length := now.Sub(b.start).Seconds()
	b.sweep(func() {
		for _, t := range b.tasks.order {
			t.blind.outside = math.NaN()
			if t.blind.began && !t.ended && t.readUsage() == nil {
				t.blind.outside = max(0, (t.usageNow.CPU-t.blind.from).Seconds()/length)
			}
			t.blind.began = false
		}
	})
	b.open, b.stretch = false, true
	period := b.Config.Sampling.Period
	b.period = periodAfter(b.period, now, period)
	b.draw(now.Add(b.Config.Tick))
	b.compare()
}

// draw draws the next stretch.
func (b *blind) draw(earliest time.Time) {
	b.next = b.period.Add(time.Duration(b.Random() * float64(b.Config.Sampling.Period)))
	if b.next.Before(earliest) {
		b.next = earliest
	}
}

// windowed takes the usages of the window that has just been closed.
func (b *blind) windowed() {
	if !b.random() {
		return
	}
	for _, t := range b.tasks.order {
		t.blind.inside = math.NaN()
		if t.counted && !t.ended && t.notes[noteUsage] == "" {
			t.blind.inside = t.cpu
		}
	}
	b.window = true
	b.compare()
}

// maxNamedEvaders bounds how many evaders the list of problems names.
const maxNamedEvaders = 8

// compare compares the usages of a window and a stretch, once both are there.
func (b *blind) compare() {
	if !b.window || !b.stretch {
		return
	}
	b.window, b.stretch = false, false
	now := sample.At(b.clock.now())
	for _, t := range b.tasks.order {
		if t.ended || t.capped || !b.pipeline.Compare(&t.Task, t.blind.inside, t.blind.outside) {
			continue
		}
		const why = "it uses far more CPU time outside sampling windows than in them"
		b.Log.Warn("task evades measurement", "task", t.Name, "why", why)
		b.recorder.audit(now, auditEntry{Who: "quell", What: "evasion", Task: t.Name, Why: why}, nil)
	}
	var all []error
	for _, e := range b.pipeline.Evaders() {
		if len(all) < maxNamedEvaders {
			all = append(all, fmt.Errorf("%s: %.2g CPU-s/s in windows, %.2g at other times, over %d periods", e.Task.Name, e.Inside, e.Outside, e.Periods))
		}
	}
	b.health.degrade("tasks that use more outside windows", errors.Join(all...))
}
