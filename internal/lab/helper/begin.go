package helper

import (
	"context"
	"errors"
	"sync"
	"time"
)

// BeginResult is when a process began, by this machine's clock.
type BeginResult struct {
	At     time.Time
	Within time.Duration // the largest error of At
	There  int64         // by its host's CLOCK_MONOTONIC, ns
	Err    error         // why it did not begin
}

// lead is how far ahead the common instant is: the request must have arrived on all hosts
// by then.
const lead = 250 * time.Millisecond

// Begin releases processes on any hosts at one instant, a quarter of a second ahead, by
// each host's own clock, compared just before. The error joins those of the processes
// that did not begin; the other processes are not stopped.
func Begin(ctx context.Context, procs []*Process) ([]BeginResult, error) {
	clients := map[*Client]bool{}
	for _, p := range procs {
		clients[p.client] = true
	}
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() { _ = c.MeasureClock(ctx) }) // a lost host fails in begin
	}
	wg.Wait()
	at := time.Now().Add(lead)
	all := make([]BeginResult, len(procs))
	for i, p := range procs {
		wg.Go(func() {
			all[i] = p.begin(ctx, p.client.there(at))
		})
	}
	wg.Wait()
	var errs []error
	for i := range all {
		errs = append(errs, all[i].Err)
	}
	return all, errors.Join(errs...)
}

// Skew is the time between the first and the last begin.
func Skew(all []BeginResult) time.Duration {
	var first, last time.Time
	for _, b := range all {
		if b.Err != nil {
			continue
		}
		if first.IsZero() || b.At.Before(first) {
			first = b.At
		}
		if b.At.After(last) {
			last = b.At
		}
	}
	return last.Sub(first)
}
