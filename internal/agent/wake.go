package agent

import (
	"context"
	"time"
)

// longestSleep is how long the loop sleeps at most: what nobody tells of waits
// as long, such as the first process of a v1 cgroup, or a save of the specs.
const longestSleep = 10 * time.Second

// loop takes a tick whenever something is due, until ctx ends. Ticks are a tick
// apart at least: what comes meanwhile is seen at the next. Waking up costs a
// program that has next to nothing to do more than what it then does.
func (a *Agent) loop(ctx context.Context) {
	last := a.now()
	a.tick(last)
	next := a.wake(last)
	timer := time.NewTimer(next.Sub(last))
	defer timer.Stop()
	changed := make(chan struct{}, 1)
	waiting, seen := false, true // seen: Find has been asked since changed said so
	for {
		if wait := a.Finder.Wait(); wait != nil && !waiting && seen {
			waiting = true
			go func() {
				_ = wait() // Find says what is wrong
				changed <- struct{}{}
			}()
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			last = a.now()
			if last.Sub(next) > a.config.Tick {
				a.stats.late++
			}
			a.tick(last)
			next, seen = a.wake(last), true
		case <-changed:
			waiting, seen = false, false
			next = last.Add(a.config.Tick)
		case request := <-a.requests:
			request()
			if w := a.wake(last); w.Before(next) { // there may be a cap now
				next = w
			}
		}
		timer.Reset(next.Sub(a.now()))
	}
}

// wake is when a tick is due after the last one, if nothing comes before: where
// something is under way, or where nobody tells of cgroups that come and go,
// each tick; else when a window begins, ends, or is half over.
func (a *Agent) wake(last time.Time) time.Time {
	next := last.Add(a.config.Tick)
	if a.Finder.Wait() == nil || a.watchful() {
		return next
	}
	due := last.Add(longestSleep)
	if d := a.window.nextDue(a.config); d.Before(due) {
		due = d
	}
	if due.Before(next) {
		return next
	}
	return due
}

// watchful reports whether something is under way that does not wait: a cap,
// which somebody else may change, an incident, an anomaly in line.
func (a *Agent) watchful() bool {
	return len(a.Enforcer.Active()) > 0 || len(a.Enforcer.Stuck()) > 0 || len(a.unlifted) > 0 ||
		len(a.pipeline.Caps()) > 0 || a.pipeline.OpenCount() > 0 || a.pipeline.Waiting()
}
