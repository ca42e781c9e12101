package httpload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// The generator's own limits: beyond them its figures are not the server's.
const (
	// ownLate is the 99th percentile up to which the generator itself may be late.
	// Timers of an idle machine are late by 0.1 ms.
	ownLate = 10 * time.Millisecond
	// shortfall is the share of the requests that it may fail to start.
	shortfall = 0.01
)

// Run loads a server. It returns errors of the options or of the context.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	client := o.client()
	defer client.CloseIdleConnections()
	began := time.Now()
	t := &tally{each: o.Answered, from: began.Add(o.Warmup), to: began.Add(o.Warmup + o.Duration)}
	var r *Result
	if o.Rate > 0 {
		r = o.open(ctx, client, t, began)
	} else {
		r = o.closed(ctx, client, t)
	}
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return nil, err
	}
	return r, nil
}

func (o *Options) closed(ctx context.Context, client *http.Client, t *tally) *Result {
	ctx, cancel := context.WithDeadline(ctx, t.to)
	defer cancel()
	var wg sync.WaitGroup
	for range o.Connections {
		wg.Go(func() {
			for ctx.Err() == nil {
				a := ask(ctx, client, o.URL, time.Now(), o.timeout())
				if ctx.Err() != nil { // cut off by the end
					return
				}
				t.add(a)
				if a.err != nil { // to avoid spinning if no server listens
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			}
		})
	}
	wg.Wait()
	return t.result()
}

func (o *Options) open(ctx context.Context, client *http.Client, t *tally, began time.Time) *Result {
	total := int(o.Rate * (o.Warmup + o.Duration).Seconds())
	timeout := o.timeout()

	// The channel has room for all requests that can wait, so sending never blocks.
	due := make(chan time.Time, int(o.Rate*timeout.Seconds())+o.Connections+1)
	var wg sync.WaitGroup
	var mu sync.Mutex
	dropped := 0
	for range o.Connections {
		wg.Go(func() {
			for intended := range due {
				if ctx.Err() != nil {
					continue
				}
				if time.Since(intended) >= timeout {
					if !intended.Before(t.from) {
						mu.Lock()
						dropped++
						mu.Unlock()
					}
					continue
				}
				t.add(ask(ctx, client, o.URL, intended, timeout))
			}
		})
	}
	var own []time.Duration
	given := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range total {
		intended := began.Add(time.Duration(float64(i) / o.Rate * 1e9))
		if wait := time.Until(intended); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break
		}
		counts := !intended.Before(t.from)
		select {
		case due <- intended:
			if counts {
				own = append(own, max(0, time.Since(intended)))
				given++
			}
		default: // full only if this goroutine falls behind
			if counts {
				mu.Lock()
				dropped++
				mu.Unlock()
			}
		}
	}
	close(due)
	wg.Wait()
	r := t.result()
	r.Offered, r.Dropped, r.Own = o.Rate, dropped, quantiles(own)
	r.Saturated = r.saturation(given, o.Rate*o.Duration.Seconds())
	return r
}

// saturation describes why the generator is saturated: it was late, or started too few of
// the wanted requests. "" if it was not.
func (r *Result) saturation(given int, want float64) string {
	switch {
	case r.Own.P99 > ownLate.Seconds():
		return fmt.Sprintf("the generator was late: p99 %.1f ms, maximum %.1f ms: give it more CPU or reduce the rate", r.Own.P99*1e3, r.Own.Max*1e3)
	case float64(given) < want*(1-shortfall)-1:
		return fmt.Sprintf("the generator sent only %d of %.0f requests", given, want)
	}
	return ""
}
