package agent

import (
	"context"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// longestSleep is how long the loop sleeps at most. Changes that are not reported are
// noticed this late, such as the first process of a v1 cgroup, or a due save of the specs.
const longestSleep = 10 * time.Second

// Run is the loop. When ctx ends, it undoes every cap and saves what was learnt; the
// error tells which of these failed.
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.done)
	a.saved = a.clock.now()
	a.view.started = sample.At(a.saved)
	a.view.hold(a.saved)
	a.health.degrade("incident log", a.recorder.closeLeftOver(a.view.started))
	if a.Uplink != nil { // they may have changed since New
		a.operator.standing.overrides.decided(a.Uplink.Decisions(), a.Version)
	}
	a.loop(ctx)
	return a.stop(a.clock.now())
}

// loop runs a tick whenever one is due, until ctx ends. Ticks are at least a tick
// interval apart: a change in between is seen at the next. For an almost idle program
// waking up costs more than the work it then does.
func (a *Agent) loop(ctx context.Context) {
	last := a.clock.now()
	a.tick(last)
	next := a.wake(last)
	timer := time.NewTimer(next.Sub(last))
	defer timer.Stop()
	changed := make(chan struct{}, 1)
	waiting, seen := false, true // seen: Find was called since the last report on changed
	for {
		if wait := a.Finder.Wait(); wait != nil && !waiting && seen {
			waiting = true
			go func() {
				_ = wait() // Find reports the error
				changed <- struct{}{}
			}()
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			last = a.clock.now()
			if last.Sub(next) > a.Config.Tick {
				a.stats.late++
			}
			a.tick(last)
			next, seen = a.wake(last), true
		case <-changed:
			waiting, seen = false, false
			next = last.Add(a.Config.Tick)
		case request := <-a.requests:
			request()
			if w := a.wake(last); w.Before(next) { // there may be a cap now
				next = w
			}
		}
		timer.Reset(next.Sub(a.clock.now()))
	}
}

// wake is when the next tick is due, if nothing happens before. It is the next tick
// interval if something is in progress, or if the kernel does not report cgroup
// changes. Otherwise it is when a window opens, closes, or is half over. When a cap's lease ends
// the tick is not waited for.
func (a *Agent) wake(last time.Time) time.Time {
	next := last.Add(a.Config.Tick)
	for _, c := range a.pipeline.Caps() {
		if end := c.Until.Time(); end.After(last) && end.Before(next) {
			next = end
		}
	}
	if a.Finder.Wait() == nil || a.watchful() {
		return next
	}
	due := last.Add(longestSleep)
	if d := a.sampler.window.nextDue(a.Config); d.Before(due) {
		due = d
	}
	if b := a.sampler.blind; b.random() && b.nextDue().Before(due) {
		due = b.nextDue()
	}
	if end := a.operator.standing.due.Time(); a.operator.standing.due != 0 && end.Before(due) {
		due = end
	}
	if due.Before(next) {
		return next
	}
	return due
}

// watchful reports whether something is in progress that needs every tick: a cap, an
// incident, a queued anomaly.
func (a *Agent) watchful() bool {
	return a.actor.pending() || len(a.pipeline.Caps()) > 0 || a.pipeline.OpenCount() > 0 || a.pipeline.Waiting()
}
