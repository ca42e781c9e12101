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

// Client is the generator as the workload of a role.
type Client struct {
	Options
	Rate float64 // requests per second; 0: a closed loop, as many as it can
}

// Values of a client's counted time. Times are in seconds.
const (
	ValueOffered   = "http.offered" // requests/s; 0: a closed loop
	ValueRate      = "http.rate"    // good answers/s
	ValueBytes     = "http.bytes"   // of bodies, /s
	ValueMean      = "http.latency" // from the intended start
	ValueP50       = "http.latency_p50"
	ValueP95       = "http.latency_p95"
	ValueP99       = "http.latency_p99"
	ValueService99 = "http.service_p99" // from the sending
	ValueErrors    = "http.errors"
	ValueDropped   = "http.dropped"
)

// Play waits for a line on in and sends requests until in closes. It prints the number
// of good answers of every slice, and the values of the counted time when that is over.
// The load goes on after that, so that the load on other parts does not change.
func (c Client) Play(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel, ok := role.Barrier(ctx, in)
	defer cancel()
	if !ok {
		return nil // cancelled
	}
	var answers atomic.Int64
	c.Answered = func(int64) { answers.Add(1) }
	var mu sync.Mutex // of out
	var wg sync.WaitGroup
	wg.Go(func() { slicesOf(ctx, &answers, &mu, out) })
	defer wg.Wait()
	defer cancel()
	r, err := c.once(ctx)
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
	c.Warmup, c.Duration = 0, 24*time.Hour
	if _, err := c.once(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

func (c Client) once(ctx context.Context) (*Result, error) {
	if c.Rate > 0 {
		return Open(ctx, c.Options, c.Rate)
	}
	return Closed(ctx, c.Options)
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
	v := map[string]float64{ValueOffered: r.Offered, ValueRate: r.Rate, ValueBytes: r.Throughput, ValueErrors: float64(r.Errors.Sum()), ValueDropped: float64(r.Dropped)}
	if r.Latency.N > 0 {
		v[ValueMean], v[ValueP50], v[ValueP95], v[ValueP99] = r.Latency.Mean, r.Latency.P50, r.Latency.P95, r.Latency.P99
		v[ValueService99] = r.Service.P99
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
