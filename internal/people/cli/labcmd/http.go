package labcmd

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab/httpload"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// labHTTP loads a web server manually, as the studies do.
func (a *commands) labHTTP() *cobra.Command {
	o := httpload.Options{}
	var rate float64
	cmd := &cobra.Command{
		Use: "http URL", Short: "load a web server at a constant rate, or find its maximum", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.URL = args[0]
			if !cmd.Flags().Changed("rate") {
				return a.httpMaximum(cmd, o)
			}
			r, err := httpload.Open(cmd.Context(), o, rate)
			if err != nil {
				return err
			}
			if a.JSON {
				err = a.WriteJSON(r)
			} else {
				a.showHTTP(r)
			}
			if err == nil && r.Saturated != "" {
				return app.Negative(fmt.Errorf("load %s: %s", o.URL, r.Saturated), "run it on other CPUs than the server's, or on another machine")
			}
			return err
		},
	}
	cmd.Flags().Float64Var(&rate, "rate", 0, "requests started per second")
	cmd.Flags().IntVar(&o.Connections, "connections", 64, "maximum number of concurrent requests")
	app.DurationVar(cmd.Flags(), &o.Duration, "duration", 10*time.Second, "duration after the warm-up")
	app.DurationVar(cmd.Flags(), &o.Warmup, "warmup", time.Second, "duration of the warm-up, which does not count")
	app.DurationVar(cmd.Flags(), &o.Timeout, "timeout", 10*time.Second, "timeout of a request")
	return a.WithJSON(cmd)
}

func (a *commands) httpMaximum(cmd *cobra.Command, o httpload.Options) error {
	each := func(r *httpload.Result) {
		if !a.JSON {
			fmt.Fprintf(a.Out, "%4d connections  %9.1f answers/s  %8.2f MB/s  p50 %s  errors %d\n",
				r.Connections, r.Rate, r.Throughput/1e6, seconds(r.Latency.P50), r.Errors.Sum())
		}
	}
	best, all, err := httpload.Maximum(cmd.Context(), o, each)
	if err == nil && best.Done == 0 {
		err = fmt.Errorf("%w: %s", httpload.ErrNoAnswer, cmp.Or(best.FirstError, "no request ended in time"))
	}
	if errors.Is(err, httpload.ErrNoAnswer) {
		return app.Negative(fmt.Errorf("load %s: %w", o.URL, err), "check that the server answers there, e.g. with curl")
	}
	if err != nil {
		return err
	}
	if a.JSON {
		return a.WriteJSON(map[string]any{"best": best, "steps": all})
	}
	fmt.Fprintf(a.Out, "the maximum: %.1f answers/s with %d connections\n", best.Rate, best.Connections)
	return nil
}

func (a *commands) showHTTP(r *httpload.Result) {
	fmt.Fprintf(a.Out, "offered   %.1f requests/s for %.0f s over at most %d connections\n", r.Offered, r.Seconds, r.Connections)
	fmt.Fprintf(a.Out, "achieved  %.1f good answers/s, %.2f MB/s\n", r.Rate, r.Throughput/1e6)
	fmt.Fprintf(a.Out, "requests  %d started, %d answered, %d failed, %d dropped\n", r.Sent, r.Done, r.Errors.Sum(), r.Dropped)
	if r.FirstError != "" {
		e := r.Errors
		fmt.Fprintf(a.Out, "failures  %d no connection, %d too slow, %d refused, %d other; the first error: %s\n", e.Connect, e.Timeout, e.Status, e.Other, r.FirstError)
	}
	for _, q := range []struct {
		name string
		of   httpload.Quantiles
	}{{"latency   from the intended start", r.Latency}, {"service   from sending", r.Service}, {"late      intended to sent", r.Late}, {"own       the generator's part of that", r.Own}} {
		fmt.Fprintf(a.Out, "%-38s p50 %s  p90 %s  p99 %s  max %s\n", q.name,
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
