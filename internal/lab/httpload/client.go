package httpload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Play is the generator as the workload of a role. It waits for a line on in and sends
// requests until in closes. It prints the number of good answers of every slice, and the
// values of the counted time when that is over. The load goes on after that, so that the
// load on other parts does not change.
func (o Options) Play(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel, ok := role.Barrier(ctx, in)
	defer cancel()
	if !ok {
		return nil // cancelled
	}
	var answers atomic.Int64
	o.Answered = func(int64) { answers.Add(1) }
	var mu sync.Mutex // of out
	var wg sync.WaitGroup
	wg.Go(func() { slicesOf(ctx, &answers, &mu, out) })
	defer wg.Wait()
	defer cancel()
	r, err := Run(ctx, o)
	if ctx.Err() != nil {
		return nil // cancelled before its counted time was over
	}
	if err != nil {
		return err
	}
	mu.Lock()
	err = r.say(out)
	mu.Unlock()
	if err != nil {
		return err
	}
	o.Warmup, o.Duration = 0, 24*time.Hour
	if _, err := Run(ctx, o); ctx.Err() == nil {
		return err
	}
	return nil
}

// slicesOf prints the number of answers in each slice.
func slicesOf(ctx context.Context, answers *atomic.Int64, mu *sync.Mutex, out io.Writer) {
	tick := time.NewTicker(role.Slice)
	defer tick.Stop()
	for from := host.Monotonic(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		to := host.Monotonic()
		mu.Lock()
		err := role.PrintIteration(out, from, to, float64(answers.Swap(0)))
		mu.Unlock()
		if err != nil {
			return // the reader is gone
		}
		from = to
	}
}

// Values returns the result's values by name.
func (r *Result) Values() map[string]float64 {
	v := map[string]float64{role.HTTPOffered: r.Offered, role.HTTPRate: r.Rate, role.HTTPBytes: r.Throughput, role.HTTPErrors: float64(r.Errors.Sum()), role.HTTPDropped: float64(r.Dropped)}
	if r.Latency.N > 0 {
		v[role.HTTPLatency], v[role.HTTPP50], v[role.HTTPP95], v[role.HTTPP99] = r.Latency.Mean, r.Latency.P50, r.Latency.P95, r.Latency.P99
		v[role.HTTPService99] = r.Service.P99
	}
	if r.Saturated != "" {
		v[role.SaturatedValue] = 1
	}
	// More than 1 % of the requests found no connection, or all failed.
	if n := r.Errors.Connect; n > 0 && 100*n > r.Sent {
		v[role.UnreachableValue] = float64(n)
	} else if r.finished == 0 {
		v[role.UnreachableValue] = float64(max(1, r.Errors.Sum()))
	}
	return v
}

// say reports the values and what they are worth in one write: a reader of the output sees
// all or nothing.
func (r *Result) say(out io.Writer) error {
	var text bytes.Buffer
	if err := role.PrintValues(&text, r.Values(), 8); err != nil {
		return err
	}
	for _, reason := range []string{r.FirstError, r.Saturated} {
		if reason != "" {
			fmt.Fprintln(&text, reason)
		}
	}
	if _, err := out.Write(text.Bytes()); err != nil {
		return fmt.Errorf("report values: %w", err)
	}
	return nil
}
