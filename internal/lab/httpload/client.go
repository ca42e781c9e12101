package httpload

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Client is the generator as the workload of a role.
type Client struct {
	Options
	Rate float64 // requests per second; 0: a closed loop, as many as it can
}

// The lines that a client prints for each slice of time and for its counted time; the
// lab's engine reads them (see package lab).
const (
	iterationLine = "quell-lab iteration"
	valueLine     = "quell-lab value"
	slice         = 100 * time.Millisecond
)

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
	// ValueSaturated is 1 if the generator itself fell behind.
	ValueSaturated = "generator-saturated"
	// ValueUnreachable is the number of requests without a connection if that is more
	// than 1 %, or the number of failed requests if all failed.
	ValueUnreachable = "unreachable"
)

// Play waits for a line on in and sends requests until in closes. It prints the number
// of good answers of every slice, and the values of the counted time when that is over.
// The load goes on after that, so that the load on other parts does not change.
func (c Client) Play(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewReader(in)
	if _, err := lines.ReadString('\n'); err != nil {
		return nil // cancelled
	}
	go func() {
		// The reader may stay blocked after this returns; the process ends.
		defer cancel()
		_, _ = io.Copy(io.Discard, lines)
	}()
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
	tick := time.NewTicker(slice)
	defer tick.Stop()
	for from := monotonic(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		to := monotonic()
		mu.Lock()
		_, err := fmt.Fprintf(out, "%s %d %d %d\n", iterationLine, from, to, answers.Swap(0))
		mu.Unlock()
		if err != nil {
			return // the reader is gone
		}
		from = to
	}
}

// monotonic is CLOCK_MONOTONIC in ns; the lab converts a role's times with it.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every kernel supports it
	}
	return ts.Nano()
}

// Values returns the result's values by name.
func (r *Result) Values() map[string]float64 {
	v := map[string]float64{ValueOffered: r.Offered, ValueRate: r.Rate, ValueBytes: r.Throughput, ValueErrors: float64(r.Errors.Sum()), ValueDropped: float64(r.Dropped)}
	if r.Latency.N > 0 {
		v[ValueMean], v[ValueP50], v[ValueP95], v[ValueP99] = r.Latency.Mean, r.Latency.P50, r.Latency.P95, r.Latency.P99
		v[ValueService99] = r.Service.P99
	}
	if r.Saturated != "" {
		v[ValueSaturated] = 1
	}
	if n := r.Errors.Connect; n > 0 && 100*n > r.Sent {
		v[ValueUnreachable] = float64(n)
	} else if r.finished == 0 {
		v[ValueUnreachable] = float64(max(1, r.Errors.Sum()))
	}
	return v
}

func (r *Result) say(out io.Writer) error {
	v := r.Values()
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if _, err := fmt.Fprintf(out, "%s %s %s\n", valueLine, name, strconv.FormatFloat(v[name], 'g', 8, 64)); err != nil {
			return fmt.Errorf("report values: %w", err)
		}
	}
	for _, text := range []string{r.FirstError, r.Saturated} {
		if text != "" {
			if _, err := fmt.Fprintln(out, text); err != nil {
				return fmt.Errorf("report values: %w", err)
			}
		}
	}
	return nil
}
