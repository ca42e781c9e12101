package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab/httpload"
)

// labHTTP loads a web server manually, as the studies do.
func (a *app) labHTTP() *cobra.Command {
	o := httpload.Options{}
	var rate float64
	cmd := &cobra.Command{
		Use: "http URL", Short: "load a web server at a constant rate, or find its maximum", Args: cobra.ExactArgs(1),
		Long: `http asks a web server for a URL and says how many answers came and how long they
took.

With --rate requests begin at that rate whatever became of those before (an open
loop), and latencies count from when each was to begin: a server that stalls is seen
by all requests of that time. Without, it looks for the server's maximum with 1, 2, 4
… connections that ask again as soon as they are answered (closed loops), each for
--duration; their latencies say little.

Exit code 1: the generator itself could not keep its times, so the figures are not
the server's.`,
		Example: `  quell lab http http://127.0.0.1:8080/30k --rate 500 --duration 30s
  quell lab http http://127.0.0.1:8080/30k --connections 64      # the maximum
  quell lab http http://127.0.0.1:8080/30k --rate 500 --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.URL = args[0]
			if !cmd.Flags().Changed("rate") {
				return a.httpMaximum(cmd, o)
			}
			r, err := httpload.Open(cmd.Context(), o, rate)
			if err != nil {
				return err
			}
			if a.json {
				err = a.writeJSON(r)
			} else {
				a.showHTTP(r)
			}
			if err == nil && r.Saturated != "" {
				return &noError{fmt.Errorf("load %s: %s", o.URL, r.Saturated), "run it on other CPUs than the server's, or on another machine"}
			}
			return err
		},
	}
	cmd.Flags().Float64Var(&rate, "rate", 0, "requests per second that are to begin")
	cmd.Flags().IntVar(&o.Connections, "connections", 64, "requests under way at once, at most")
	cmd.Flags().DurationVar(&o.Duration, "duration", 10*time.Second, "how long, after the warm-up")
	cmd.Flags().DurationVar(&o.Warmup, "warmup", time.Second, "how long before anything counts")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 10*time.Second, "of a request")
	return a.withJSON(cmd)
}

func (a *app) httpMaximum(cmd *cobra.Command, o httpload.Options) error {
	each := func(r *httpload.Result) {
		if !a.json {
			fmt.Fprintf(a.out, "%4d connections  %9.1f answers/s  %8.2f MB/s  p50 %s  errors %d\n",
				r.Connections, r.Rate, r.Throughput/1e6, seconds(r.Latency.P50), r.Errors.Sum())
		}
	}
	best, all, err := httpload.Maximum(cmd.Context(), o, each)
	if err != nil {
		return err
	}
	if best.Done == 0 {
		return &noError{fmt.Errorf("load %s: no good answer; the first: %s", o.URL, best.FirstError), "see that the server answers there, e.g. with curl"}
	}
	if a.json {
		return a.writeJSON(map[string]any{"best": best, "steps": all})
	}
	fmt.Fprintf(a.out, "the maximum: %.1f answers/s with %d connections\n", best.Rate, best.Connections)
	return nil
}

func (a *app) showHTTP(r *httpload.Result) {
	fmt.Fprintf(a.out, "offered   %.1f requests/s for %.0f s over at most %d connections\n", r.Offered, r.Seconds, r.Connections)
	fmt.Fprintf(a.out, "achieved  %.1f good answers/s, %.2f MB/s\n", r.Rate, r.Throughput/1e6)
	fmt.Fprintf(a.out, "requests  %d begun, %d answered, %d failed, %d dropped\n", r.Sent, r.Done, r.Errors.Sum(), r.Dropped)
	if r.FirstError != "" {
		e := r.Errors
		fmt.Fprintf(a.out, "failures  %d no connection, %d too slow, %d refused, %d other; the first: %s\n", e.Connect, e.Timeout, e.Status, e.Other, r.FirstError)
	}
	for _, q := range []struct {
		name string
		of   httpload.Quantiles
	}{{"latency   from the intended beginning", r.Latency}, {"service   from the sending", r.Service}, {"late      intended to sent", r.Late}, {"own       the generator's part of that", r.Own}} {
		fmt.Fprintf(a.out, "%-38s p50 %s  p90 %s  p99 %s  max %s\n", q.name,
			seconds(q.of.P50), seconds(q.of.P90), seconds(q.of.P99), seconds(q.of.Max))
	}
}

// seconds formats a latency.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
